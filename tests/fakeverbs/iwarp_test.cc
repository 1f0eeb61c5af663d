// iWARP over the stand-in: the contract of networks, and what becomes of connections that the
// connection manager does not make, or that end.

#include <gmock/gmock.h>

#include <cerrno>

#include "transport/testing/net_contract.h"
#include "transport/testing/verbs_forms.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using net_contract::NetBuffer;
using net_contract::NetLink;
using net_contract::Transfer;
using ::testing::HasSubstr;

// Gives the stand-in a device of iWARP alone, at an address of this host.
void OfferIwarp() {
  fakeverbs::DeviceSpec device;
  device.name = "iw0";
  device.iwarp = true;
  device.ports[0].address = fakeverbs::InterfaceAddress();
  fakeverbs::SetDevices({device});
}

void OfferTheDefault() {
  fakeverbs::Reset();
  EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  fakeverbs::SetDevices({{}});
}

#define SKIP_WITHOUT_INTERFACE()             \
  if (fakeverbs::InterfaceAddress().empty()) \
  GTEST_SKIP() << "this host has no network interface beside loop-back, or no librdmacm-dev"

class IwarpNetContract : public NetContract {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_INTERFACE();
    OfferIwarp();
  }
  ~IwarpNetContract() override { OfferTheDefault(); }
};
TEST_P(IwarpNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Iwarp, IwarpNetContract,
                         ::testing::Combine(::testing::ValuesIn(ForEachVerbsForm(VerbsFactory)),
                                            ::testing::ValuesIn(net_contract::Cases())),
                         NetContractCaseName);

class IwarpFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_INTERFACE();
    OfferIwarp();
  }
  ~IwarpFaultTest() override { OfferTheDefault(); }

  // Makes a connection of two queue pairs and drives both ends until it fails at both. Returns what
  // the sending end says and what the receiving end says.
  static std::array<Status, 2> Failures(NetLink& link) {
    return {NetLink::AwaitFailure(*link.sender), NetLink::AwaitFailure(*link.receiver)};
  }
  static Settings TwoQueuePairs() {
    Settings settings;
    settings.ib_qps = 2;
    return settings;
  }
  static std::vector<uint32_t> QueuePairs() {
    std::vector<uint32_t> numbers;
    for (const fakeverbs::Call& call : fakeverbs::Calls()) {
      if (call.name == "create_qp") numbers.push_back(call.queue_pair);
    }
    return numbers;
  }
};

// Drives both ends until one fails; whatever the other says comes of that.
Status DriveUntilFailure(NetLink& link) {
  const Deadline deadline = net_contract::Bound().deadline;
  while (!deadline.Passed()) {
    for (NetComm* const end :
         {static_cast<NetComm*>(link.receiver.get()), static_cast<NetComm*>(link.sender.get())}) {
      const Result<bool> moved = end->Progress();
      if (!moved.ok()) return moved.status();
    }
  }
  return Timeout("nothing failed");
}

TEST_F(IwarpFaultTest, APortIsThatOfItsInterface) {
  VerbsNetPair pair({});
  ASSERT_EQ(pair.sending().devices().size(), 1u);
  EXPECT_EQ(pair.sending().devices()[0].name, "iw0");
  EXPECT_EQ(pair.sending().devices()[0].address, fakeverbs::InterfaceAddress());
  EXPECT_EQ(pair.sending().rma(), nullptr);
}

// Each step that fails is named at both ends, with the reason.
TEST_F(IwarpFaultTest, AStepThatFailsIsToldAtBothEnds) {
  struct Step {
    const char* name;
    int error;
    const char* event;
  };
  for (const Step& step :
       {Step{"address", ETIMEDOUT, "address resolution error (Connection timed out)"},
        Step{"route", EHOSTUNREACH, "route resolution error (No route to host)"},
        Step{"connect", ETIMEDOUT, "unreachable (Connection timed out)"},
        Step{"accept", ECONNABORTED, "connection error (Software caused connection abort)"}}) {
    // The first queue pair, and the second once the first may be joined.
    for (const int skip : {0, 1}) {
      SCOPED_TRACE(fmt::format("{} after {}", step.name, skip));
      fakeverbs::Reset();
      fakeverbs::FailManager({step.name, step.error, 1, skip});
      VerbsNetPair pair(TwoQueuePairs());
      NetLink link(pair);
      const Status first = DriveUntilFailure(link);
      EXPECT_EQ(first.code(), Code::kRemoteError);
      EXPECT_THAT(std::string(first.message()), HasSubstr(step.event));
      EXPECT_THAT(std::string(first.message()), HasSubstr("joining queue pair"));
      for (const Status& status : Failures(link)) EXPECT_EQ(status.code(), Code::kRemoteError);
    }
  }
}

// Each call that is refused is told, too, and nothing is left behind.
TEST_F(IwarpFaultTest, ACallThatIsRefusedIsTold) {
  for (const char* const call :
       {"rdma_resolve_addr", "rdma_resolve_route", "rdma_connect", "rdma_accept"}) {
    SCOPED_TRACE(call);
    fakeverbs::Reset();
    fakeverbs::RefuseCalls(call, ECONNREFUSED);
    VerbsNetPair pair(TwoQueuePairs());
    NetLink link(pair);
    const Status first = DriveUntilFailure(link);
    EXPECT_THAT(std::string(first.message()), HasSubstr("Connection refused"));
    for (const Status& status : Failures(link)) EXPECT_FALSE(status.ok());
  }
  // The sending end cannot await queue pairs, or the receiving end cannot begin to connect.
  for (const char* const call :
       {"rdma_create_event_channel", "rdma_create_id", "rdma_bind_addr", "rdma_listen"}) {
    SCOPED_TRACE(call);
    fakeverbs::Reset();
    VerbsNetPair pair({});
    const auto listener = pair.receiving().Listen(0).value();
    fakeverbs::RefuseCalls(call, EMFILE);
    const auto sender = pair.sending().Connect(0, listener->handle(), net_contract::Bound());
    EXPECT_EQ(sender.status().code(), Code::kSystemError);
    EXPECT_THAT(std::string(sender.status().message()), HasSubstr("Too many open files"));
  }
}

TEST_F(IwarpFaultTest, EventsThatCannotBeReadFailTheConnection) {
  VerbsNetPair pair({});
  NetLink link(pair);
  Transfer(link, {100});
  fakeverbs::RefuseCalls("rdma_get_cm_event", EIO, 1000);
  for (const Status& status : Failures(link)) EXPECT_FALSE(status.ok());
}

// The kernel's own time-outs end each step; were one of them to stay silent, the ends sleep, and
// the end of either is heard of by the other.
TEST_F(IwarpFaultTest, AStepThatNeverEndsHoldsNobodyUp) {
  for (const char* const step : {"address", "route", "connect", "accept"}) {
    for (const bool sender_leaves : {false, true}) {
      SCOPED_TRACE(step);
      fakeverbs::Reset();
      fakeverbs::FailManager({step, 0});
      VerbsNetPair pair(TwoQueuePairs());
      NetLink link(pair);
      NetBuffer to = link.ReceiveBuffer(100);
      NetBuffer from = link.SendBuffer(100);
      ASSERT_NE(link.Receive(to), nullptr);
      for (int i = 0; i < 2000; ++i) {
        ASSERT_EQ(link.Send(from), nullptr) << "a queue pair was used that is not joined";
        ASSERT_TRUE(link.sender->Progress().ok());
        ASSERT_TRUE(link.receiver->Progress().ok());
      }
      if (sender_leaves) {
        link.sender.reset();
        EXPECT_EQ(NetLink::AwaitFailure(*link.receiver).code(), Code::kRemoteError);
      } else {
        link.receiver.reset();
        EXPECT_EQ(NetLink::AwaitFailure(*link.sender).code(), Code::kRemoteError);
      }
    }
  }
}

TEST_F(IwarpFaultTest, AConnectionThatIsCutFailsBothEnds) {
  for (const size_t which : {0, 1, 2, 3}) {
    SCOPED_TRACE(which);
    fakeverbs::Reset();
    VerbsNetPair pair(TwoQueuePairs());
    NetLink link(pair);
    Transfer(link, {100, 100'000});
    // Two of the sender, then two of the receiver.
    ASSERT_EQ(QueuePairs().size(), 4u);
    fakeverbs::CutConnection(QueuePairs()[which]);
    const Status first = DriveUntilFailure(link);
    EXPECT_THAT(std::string(first.message()),
                ::testing::AnyOf(HasSubstr("the other end's queue pair is gone"),
                                 HasSubstr("Work Request Flushed Error")));
    for (const Status& status : Failures(link)) EXPECT_EQ(status.code(), Code::kRemoteError);
  }
}

TEST_F(IwarpFaultTest, ADeviceThatIsRemovedIsTold) {
  VerbsNetPair pair(TwoQueuePairs());
  NetLink link(pair);
  Transfer(link, {100});
  fakeverbs::RemoveDevice("iw0");
  EXPECT_THAT(
      std::string(DriveUntilFailure(link).message()),
      ::testing::AnyOf(HasSubstr("device removal"), HasSubstr("Work Request Flushed Error")));
  for (const Status& status : Failures(link)) EXPECT_EQ(status.code(), Code::kRemoteError);
}

// Somebody who does not have the secret, or has it and names a queue pair that is taken, is
// refused, and the connection is made all the same.
TEST_F(IwarpFaultTest, StrangersAreRefused) {
  VerbsNetPair pair({});
  const auto listener = pair.receiving().Listen(0).value();
  auto sender = pair.sending().Connect(0, listener->handle(), net_contract::Bound()).value();
  auto receiver = listener->Accept(net_contract::Bound()).value();
  const uint16_t port = fakeverbs::AwaitedPort();
  ASSERT_NE(port, 0);
  std::atomic<bool> stop = false;
  std::thread driver([&] {
    while (!stop.load()) {
      const Result<bool> moved = sender->Progress();
      EXPECT_TRUE(moved.ok()) << moved.status().message();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (const std::string& secret : {std::string(), std::string(20, 'x'), std::string(255, 'y')})
    EXPECT_TRUE(fakeverbs::StrangerIsRefused(port, secret));
  stop.store(true);
  driver.join();
  NetLink link(pair);
  Transfer(link, {100});
}

// What was drained has come although nobody drives the receiving end, and nothing counts as drained
// whose arrival has not been proven.
TEST_F(IwarpFaultTest, DrainedIsWhatTheOtherHostHas) {
  VerbsNetPair pair(TwoQueuePairs());
  NetLink link(pair);
  Transfer(link, {100});
  NetBuffer to = link.ReceiveBuffer(1000);
  NetBuffer from = link.SendBuffer(1000);
  from.Fill(3);
  ASSERT_NE(link.Receive(to), nullptr);
  NetRequest* const sending = link.SendSoon(from);
  ASSERT_NE(sending, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  const auto reads = [] {
    const std::vector<fakeverbs::Call> calls = fakeverbs::Calls();
    return std::count_if(calls.begin(), calls.end(), [](const fakeverbs::Call& call) {
      return call.name == "post_send" && call.opcode == IBV_WR_RDMA_READ;
    });
  };
  EXPECT_EQ(reads(), 0) << "arrival is proven without being asked for";
  fakeverbs::HoldAnswers(true);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(link.sender->Drained());
    ASSERT_TRUE(link.sender->Progress().ok());
  }
  EXPECT_EQ(reads(), 2) << "one for each queue pair";
  fakeverbs::HoldAnswers(false);
  const Deadline deadline = net_contract::Bound().deadline;
  while (!link.sender->Drained() && !deadline.Passed()) ASSERT_TRUE(link.sender->Progress().ok());
  EXPECT_TRUE(link.sender->Drained());
  EXPECT_EQ(to.FirstWrong(3, 1000), 1000u);
}

}  // namespace
}  // namespace tutti
