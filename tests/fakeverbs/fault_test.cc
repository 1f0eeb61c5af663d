// Tests what becomes of connections over verbs when NICs, peers or the system fail.

#include <gmock/gmock.h>

#include <cerrno>

#include "transport/net/socket/listener.h"
#include "transport/net/verbs/setup.h"
#include "transport/net/verbs/table.h"
#include "transport/testing/net_contract.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using net_contract::NetBuffer;
using net_contract::NetLink;
using net_contract::Transfer;
using ::testing::HasSubstr;

class VerbsFaultTest : public ::testing::Test {
 protected:
  ~VerbsFaultTest() override {
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  }
};

// A receiver that has what it wants may leave before the sender's NIC has its answer.
TEST_F(VerbsFaultTest, AnAnswerMayComeAfterTheReceiverHasLeft) {
  VerbsNetPair pair({});
  NetLink link(pair);
  NetBuffer to = link.ReceiveBuffer(1000);
  NetBuffer from = link.SendBuffer(1000);
  NetRequest* const receiving = link.Receive(to);
  fakeverbs::HoldAnswers(true);
  NetRequest* const sending = link.SendSoon(from);
  ASSERT_NE(sending, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
  link.receiver.reset();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(link.sender->Progress().ok());
  EXPECT_FALSE(link.sender->Drained());
  fakeverbs::HoldAnswers(false);
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  EXPECT_EQ(NetLink::AwaitFailure(*link.sender).code(), Code::kRemoteError);
}

// Lost queue pairs end their connection at once.
Settings WithoutRecovery() {
  Settings settings;
  settings.resume_timeout_s = 0;
  return settings;
}

// Where the stand-in was told to write last by a request of so many bytes.
uint64_t AddressOfWrite(size_t bytes) {
  uint64_t address = 0;
  for (const fakeverbs::Call& call : fakeverbs::Calls()) {
    if (call.name == "post_send" && call.bytes == bytes) address = call.address;
  }
  return address;
}

// What a receiver that has lost its mind writes into the sender's table of grants.
TEST_F(VerbsFaultTest, GrantsThatMakeNoSenseAreRefused) {
  struct Damage {
    const char* sentence;
    std::function<void(GrantSlot&)> change;
  };
  const std::vector<Damage> damages = {
      {"a group of 0 buffers", [](GrantSlot& slot) { slot[0].count = 0; }},
      {"a group of 9 buffers", [](GrantSlot& slot) { slot[0].count = 9; }},
      {"a group of 4294967295 buffers", [](GrantSlot& slot) { slot[0].count = ~0u; }},
      {"missing or named twice", [](GrantSlot& slot) { slot[1].count = 3; }},
      {"missing or named twice", [](GrantSlot& slot) { slot[1].tag = slot[0].tag; }},
      {"remote access error", [](GrantSlot& slot) { slot[0].keys[0] ^= 0x55555; }},
      {"remote access error", [](GrantSlot& slot) { slot[0].address = 4096; }},
      {"remote access error", [](GrantSlot& slot) { slot[0].address = ~uint64_t{0} - 7; }},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.sentence);
    fakeverbs::Reset();
    VerbsNetPair pair({});
    NetLink link(pair);
    NetBuffer first = link.ReceiveBuffer(1000);
    NetBuffer second = link.ReceiveBuffer(1000);
    const NetReceive group[] = {{first.data(), 1000, 1, first.memory()},
                                {second.data(), 1000, 2, second.memory()}};
    ASSERT_NE(*link.receiver->Irecv(group), nullptr);
    uint64_t table = 0;
    ASSERT_TRUE(link.Drive([&] { return (table = AddressOfWrite(2 * sizeof(GrantEntry))) != 0; }));
    auto& slot = *reinterpret_cast<GrantSlot*>(table);
    ASSERT_TRUE(link.Drive([&] { return IsWhole(slot[1], 1); }));
    damage.change(slot);
    NetBuffer from = link.SendBuffer(1000);
    from.Fill(1);
    Status status;
    const Deadline deadline = net_contract::Bound().deadline;
    while (status.ok() && !deadline.Passed()) {
      status = link.sender->Isend({from.data(), 1000, 1, 0, from.memory()}).status();
      if (status.ok()) status = link.sender->Progress().status();
    }
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_THAT(std::string(status.message()), HasSubstr(damage.sentence));
    EXPECT_FALSE(NetLink::AwaitFailure(*link.receiver).ok());
    EXPECT_EQ(first.data()[0], std::byte{0}) << "it was written all the same";
  }
}

// What a sender that has lost its mind says by the send that tells of a message.
TEST_F(VerbsFaultTest, NoticesThatMakeNoSenseAreRefused) {
  struct Damage {
    const char* sentence;
    std::function<void(Notice&)> change;
  };
  const std::vector<Damage> damages = {
      {"of a kind 7", [](Notice& notice) { notice.kind = static_cast<Notice::Kind>(7); }},
      {"not the next under way", [](Notice& notice) { notice.group = 1; }},
      {"not the next under way", [](Notice& notice) { notice.group = 3; }},
      {"group 99, which is not under way",
       [](Notice& notice) {
         notice = {99, 0, 0, Notice::Kind::kSideEnd};
       }},
      {"wrote 1001 bytes for a buffer of 1000", [](Notice& notice) { notice.bytes = 1001; }},
  };
  Settings settings;
  settings.ib_send_notices = true;
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.sentence);
    fakeverbs::Reset();
    VerbsNetPair pair(settings);
    NetLink link(pair);
    NetBuffer to = link.ReceiveBuffer(1000);
    NetBuffer from = link.SendBuffer(1000);
    // The records of a group tell where the receiver's table is; the notices lie behind them.
    const NetReceive group[] = {{to.data(), 500, 1, to.memory()},
                                {to.data() + 500, 500, 2, to.memory()}};
    NetRequest* const both = *link.receiver->Irecv(group);
    ASSERT_NE(both, nullptr);
    for (const uint32_t tag : {1u, 2u}) {
      NetRequest* sending = nullptr;
      ASSERT_TRUE(link.Drive([&] {
        if (!sending) sending = link.Send({from.data(), 10, tag, 0, from.memory()});
        return sending && link.Sent(sending);
      }));
    }
    ASSERT_TRUE(link.Drive([&] { return link.Received(both); }));
    const uint64_t records = AddressOfWrite(2 * sizeof(RecordEntry)) - sizeof(RecordSlot);
    auto* const notices = reinterpret_cast<Notice*>(records + kTableSlots * sizeof(RecordSlot));
    ASSERT_NE(link.Receive(to), nullptr);
    NetRequest* const sending = link.SendSoon(from);
    ASSERT_NE(sending, nullptr);
    const Deadline deadline = net_contract::Bound().deadline;
    while (!link.Sent(sending) && !deadline.Passed()) ASSERT_TRUE(link.sender->Progress().ok());
    ASSERT_EQ(notices[1].group, 2u);
    damage.change(notices[1]);
    const Status status = NetLink::AwaitFailure(*link.receiver);
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_THAT(std::string(status.message()), HasSubstr(damage.sentence));
    EXPECT_FALSE(NetLink::AwaitFailure(*link.sender).ok());
  }
}

// The same group granted once more, while it is filled and afterwards, changes nothing.
TEST_F(VerbsFaultTest, AGrantThatComesTwiceCountsOnce) {
  VerbsNetPair pair({});
  NetLink link(pair);
  NetBuffer to = link.ReceiveBuffer(1000);
  NetBuffer from = link.SendBuffer(1000);
  ASSERT_NE(link.Receive(to), nullptr);
  uint64_t table = 0;
  ASSERT_TRUE(link.Drive([&] { return (table = AddressOfWrite(sizeof(GrantEntry))) != 0; }));
  auto& entry = *reinterpret_cast<GrantEntry*>(table);
  NetRequest* const sending = link.SendSoon(from);
  const GrantEntry granted = entry;
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  entry = granted;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(link.Send(from), nullptr);
    ASSERT_TRUE(link.sender->Progress().ok());
  }
  ASSERT_NE(link.Receive(to), nullptr);
  ASSERT_NE(link.SendSoon(from), nullptr);
}

// Both ends of a connection that a test opens by hand, as a sender that says what it likes.
TEST_F(VerbsFaultTest, OffersThatLeadNowhereEndInASentence) {
  struct Lie {
    const char* sentence;
    std::function<void(VerbsEnd&)> change;
  };
  const std::vector<Lie> lies = {
      {"did not answer",
       [](VerbsEnd& end) {
         end.queue_pairs = {{0xabcdef, 0}};
       }},
      {"did not answer",
       [](VerbsEnd& end) {
         end.queue_pairs = {{0, 0}};
       }},
      {"did not answer", [](VerbsEnd& end) { end.first_packet = 0xffffff; }},
      {"did not answer", [](VerbsEnd& end) { end.ports[0].gid = {}; }},
      {"cannot be (0 of them", [](VerbsEnd& end) { end.queue_pairs.clear(); }},
      {"is RoCE and", [](VerbsEnd& end) { end.ethernet = false; }},
      {"rogue is iWARP", [](VerbsEnd& end) { end.iwarp = true; }},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.sentence);
    VerbsNetPair pair(WithoutRecovery());
    const auto listener = pair.receiving().Listen(0).value();
    const WaitLimits bound = net_contract::Bound();
    ControlSocket rogue = ConnectTo(*listener, pair.key);
    VerbsEnd end;
    end.ethernet = true;
    end.ports.resize(1);
    end.ports[0].mtu = 5;
    end.ports[0].gid[10] = end.ports[0].gid[11] = 0xff;
    end.queue_pairs = {{0x123456, 0}};
    end.name = "rogue";
    lie.change(end);
    ASSERT_TRUE(rogue.Send(ControlType::kOffer, end.Encode()).ok());
    const auto accepted = listener->Accept(bound);
    Status status = accepted.status();
    if (status.ok()) {
      ASSERT_TRUE(rogue.Send(ControlType::kReady, {}).ok());
      std::vector<std::byte> bytes(100);
      auto memory = (*accepted)->Register({bytes.data(), bytes.size()}).value();
      const NetReceive receive = {bytes.data(), bytes.size(), 0, memory.get()};
      ASSERT_TRUE((*accepted)->Irecv({&receive, 1}).ok());
      status = NetLink::AwaitFailure(**accepted);
    }
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_THAT(std::string(status.message()), HasSubstr(lie.sentence));
  }
}

TEST_F(VerbsFaultTest, HandlesOfGarbageAreRefused) {
  VerbsNetPair pair({});
  const auto listener = pair.receiving().Listen(0).value();
  const WaitLimits soon = {Deadline::AfterSeconds(1), nullptr};
  NetHandle handle = {};
  EXPECT_FALSE(pair.sending().Connect(0, handle, soon).ok());
  for (size_t i = 8; i < handle.size(); ++i) {
    handle = listener->handle();
    handle[i] ^= std::byte{0xff};
    // A changed byte may be one that says nothing; nobody is connected to anything else.
    [[maybe_unused]] const auto connected =
        pair.sending().Connect(0, handle, {Deadline::AfterSeconds(0.01), nullptr});
  }
  NetLink link(pair);
  Transfer(link, {100});
}

TEST_F(VerbsFaultTest, AQueuePairsEventFailsItsConnectionAlone) {
  VerbsNetPair pair(WithoutRecovery());
  NetLink first(pair);
  NetLink second(pair);
  Transfer(first, {100});
  // The first link's queue pairs were made first: the sender's, then the receiver's.
  std::vector<uint32_t> numbers;
  for (const fakeverbs::Call& call : fakeverbs::Calls()) {
    if (call.name == "create_qp") numbers.push_back(call.queue_pair);
  }
  ASSERT_EQ(numbers.size(), 4u);
  fakeverbs::RaiseQueuePairEvent(numbers[0], IBV_EVENT_QP_FATAL);
  const Status status = NetLink::AwaitFailure(*first.sender);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the device reported it"));
  Transfer(second, {100, 100'000});
  fakeverbs::RaiseDeviceEvent("fake0", IBV_EVENT_DEVICE_FATAL);
  EXPECT_THAT(std::string(NetLink::AwaitFailure(*second.sender).message()), HasSubstr("fake0"));
}

TEST_F(VerbsFaultTest, ARefusedRegistrationNamesTheLimitAndHarmsNothing) {
  VerbsNetPair pair({});
  NetLink link(pair);
  std::vector<std::byte> bytes(100);
  for (const char* const call : {"reg_mr", "reg_mr_iova2"}) {
    fakeverbs::RefuseCalls(call, ENOMEM);
  }
  const auto refused = link.sender->Register({bytes.data(), bytes.size()});
  EXPECT_EQ(refused.status().code(), Code::kSystemError);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("ulimit -l"));
  fakeverbs::Reset();
  Transfer(link, {100});
}

TEST_F(VerbsFaultTest, WithoutLockedMemoryTheNetworkIsNotUsed) {
  Settings settings;
  settings.ib_library = FakeVerbsLibrary();
  VerbsNet::Options options;
  options.address = ParseSocketAddress("127.0.0.1:0").value();
  const auto loop = EventLoop::Create("fault").value();
  for (const char* const call : {"reg_mr", "alloc_pd", "open_device", "query_port"}) {
    fakeverbs::RefuseCalls(call, ENOMEM);
    const auto net = VerbsNet::Create(*loop, RandomKey(), settings, options).value();
    EXPECT_FALSE(net->IsViable().ok()) << call;
    EXPECT_THAT(std::string(net->IsViable().message()), HasSubstr("fake0")) << call;
  }
}

// What the receiver cannot make is told to the sender.
TEST_F(VerbsFaultTest, BothEndsAreToldWhatTheReceiverLacks) {
  for (const char* const call : {"create_qp", "create_cq", "create_comp_channel", "modify_qp"}) {
    SCOPED_TRACE(call);
    VerbsNetPair pair({});
    const auto listener = pair.receiving().Listen(0).value();
    auto sender = pair.sending().Connect(0, listener->handle(), net_contract::Bound()).value();
    fakeverbs::RefuseCalls(call, EMFILE, /*times=*/3);
    const auto accepted = listener->Accept(net_contract::Bound());
    EXPECT_EQ(accepted.status().code(), Code::kSystemError);
    const Status status = NetLink::AwaitFailure(*sender);
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_THAT(std::string(status.message()), HasSubstr("the other end refused: fake0"));
    fakeverbs::Reset();
  }
}

TEST_F(VerbsFaultTest, AFailedWriteIsToldAtBothEnds) {
  for (const bool delivered : {false, true}) {
    VerbsNetPair pair(WithoutRecovery());
    NetLink link(pair);
    NetBuffer to = link.ReceiveBuffer(1000);
    NetBuffer from = link.SendBuffer(1000);
    ASSERT_NE(link.Receive(to), nullptr);
    fakeverbs::FailSend({.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .delivered = delivered});
    ASSERT_NE(link.SendSoon(from), nullptr);
    const Status status = NetLink::AwaitFailure(*link.sender);
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL_IB_RETRY_CNT"));
    EXPECT_FALSE(NetLink::AwaitFailure(*link.receiver).ok());
  }
}

}  // namespace
}  // namespace tutti
