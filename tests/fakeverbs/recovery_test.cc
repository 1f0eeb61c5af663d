// Queue pairs that are lost under way are made again, with every message once.

#include <gmock/gmock.h>

#include "losses.h"
#include "transport/net/verbs/table.h"
#include "transport/testing/verbs_forms.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using net_contract::NetBuffer;
using net_contract::NetLink;
using net_contract::Transfer;
using ::testing::HasSubstr;

NetFactory Faulty(const std::string& name, const std::function<void(Settings&)>& change) {
  NetFactory factory = VerbsFactory(name, change);
  factory.make = [make = factory.make] {
    fakeverbs::Reset();
    FailOften();
    return make();
  };
  return factory;
}

class FaultyVerbsContract : public NetContract {
 protected:
  ~FaultyVerbsContract() override {
    // The other cases have so few requests that nobody may wait for those that fail.
    if (std::string_view(std::get<1>(GetParam()).name) == "KeepsOrderOverMixedSizes") {
      const std::vector<fakeverbs::Call> calls = fakeverbs::Calls();
      EXPECT_TRUE(std::any_of(calls.begin(), calls.end(), [](const fakeverbs::Call& call) {
        return call.name == "modify_qp" && call.opcode == IBV_QPS_RESET;
      })) << "nothing was made again";
    }
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  }
};
TEST_P(FaultyVerbsContract, Holds) { Run(); }

INSTANTIATE_TEST_SUITE_P(Faulty, FaultyVerbsContract,
                         ::testing::Combine(::testing::ValuesIn(ForEachVerbsForm(Faulty)),
                                            ::testing::ValuesIn(CasesThatStay())),
                         NetContractCaseName);

class VerbsRecoveryTest : public ::testing::Test {
 protected:
  ~VerbsRecoveryTest() override {
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  }
};

std::vector<uint32_t> QueuePairsMade() {
  std::vector<uint32_t> numbers;
  for (const fakeverbs::Call& call : fakeverbs::Calls()) {
    if (call.name == "create_qp") numbers.push_back(call.queue_pair);
  }
  return numbers;
}

TEST_F(VerbsRecoveryTest, AQueuePairThatTheDeviceReportsIsMadeAgain) {
  VerbsNetPair pair({});
  NetLink link(pair);
  Transfer(link, {100});
  for (const uint32_t number : QueuePairsMade()) {
    fakeverbs::RaiseQueuePairEvent(number, IBV_EVENT_QP_FATAL);
    Transfer(link, net_contract::MixedSizes(5, 20));
  }
}

// Both ends' port goes down, and the device has another one, though they are not offered as one.
TEST_F(VerbsRecoveryTest, MovesToAnotherPortOfTheDevice) {
  fakeverbs::DeviceSpec two_ports;
  two_ports.ports = {{"10.77.0.1"}, {"10.77.0.2"}};
  fakeverbs::SetDevices({two_ports});
  {
    Settings settings;
    settings.ib_merge_nics = false;
    VerbsNetPair pair(settings);
    NetLink link(pair);
    Transfer(link, {100, 100'000});
    fakeverbs::SetPortActive("fake0", 1, false);
    Transfer(link, net_contract::MixedSizes(6, 40));
    fakeverbs::SetPortActive("fake0", 1, true);
    fakeverbs::SetPortActive("fake0", 2, false);
    Transfer(link, net_contract::MixedSizes(7, 40));
  }
  fakeverbs::SetDevices({{}});
}

TEST_F(VerbsRecoveryTest, APortThatIsDownEndsTheConnectionWhereThereIsNoOther) {
  VerbsNetPair pair({});
  NetLink link(pair);
  Transfer(link, {100});
  fakeverbs::SetPortActive("fake0", 1, false);
  NetBuffer to = link.ReceiveBuffer(1000);
  ASSERT_NE(link.Receive(to), nullptr);  // and the grant cannot be written
  for (const std::string& failure : FailuresOf(link)) {
    EXPECT_THAT(failure, HasSubstr("fake0 has no active port, and no other can take its place"));
  }
  fakeverbs::SetPortActive("fake0", 1, true);
}

TEST_F(VerbsRecoveryTest, EndlessLossesEndWithTheReason) {
  VerbsNetPair pair({});
  NetLink link(pair);
  Transfer(link, {100});
  for (int i = 0; i < 20; ++i) fakeverbs::FailSend({});
  NetBuffer to = link.ReceiveBuffer(1000);
  ASSERT_NE(link.Receive(to), nullptr);
  const std::array<std::string, 2> failures = FailuresOf(link);
  EXPECT_THAT(failures[1], HasSubstr("NCCL_IB_RETRY_CNT"));
  EXPECT_NE(failures[0], "");
}

// What a sender may say at the wrong time.
TEST_F(VerbsRecoveryTest, OffersOutOfPlaceAreRefused) {
  const auto failure = [](const std::function<void(ControlSocket&, VerbsEnd&)>& say) {
    VerbsNetPair pair({});
    const auto listener = pair.receiving().Listen(0).value();
    ControlSocket rogue = ConnectTo(*listener, pair.key);
    VerbsEnd end;
    end.ethernet = true;
    end.ports.resize(1);
    end.ports[0].mtu = 5;
    end.ports[0].gid[10] = end.ports[0].gid[11] = 0xff;
    end.queue_pairs = {{0x123456, 0}};
    end.name = "rogue";
    EXPECT_TRUE(rogue.Send(ControlType::kOffer, end.Encode()).ok());
    const auto accepted = listener->Accept(net_contract::Bound()).value();
    say(rogue, end);
    return std::string(NetLink::AwaitFailure(*accepted).message());
  };
  EXPECT_THAT(failure([](ControlSocket& rogue, VerbsEnd&) {
                EXPECT_TRUE(rogue.Send(ControlType::kAnswerAgain, {}).ok());
              }),
              HasSubstr("at the wrong time"));
  EXPECT_THAT(failure([](ControlSocket& rogue, VerbsEnd&) {
                EXPECT_TRUE(rogue.Send(ControlType::kReady, {}).ok());
                EXPECT_TRUE(rogue.Send(ControlType::kOfferAgain, {}).ok());
              }),
              HasSubstr("wrong length"));
  EXPECT_THAT(failure([](ControlSocket& rogue, VerbsEnd& end) {
                EXPECT_TRUE(rogue.Send(ControlType::kReady, {}).ok());
                EXPECT_TRUE(rogue.Send(ControlType::kOfferAgain, end.Encode()).ok());
                EXPECT_TRUE(rogue.Send(ControlType::kOfferAgain, end.Encode()).ok());
              }),
              HasSubstr("twice"));
  EXPECT_THAT(failure([](ControlSocket& rogue, VerbsEnd& end) {
                EXPECT_TRUE(rogue.Send(ControlType::kReady, {}).ok());
                end.queue_pairs = {{1, 0}, {2, 0}};
                EXPECT_TRUE(rogue.Send(ControlType::kOfferAgain, end.Encode()).ok());
              }),
              HasSubstr("2 queue pairs for 1"));
}

}  // namespace
}  // namespace tutti
