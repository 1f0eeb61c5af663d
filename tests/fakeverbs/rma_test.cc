// The contract of one-sided operations over verbs, over the stand-in.

#include "transport/testing/rma_contract.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

class VerbsRmaContract : public RmaContract {
 protected:
  ~VerbsRmaContract() override { EXPECT_EQ(fakeverbs::ObjectsAlive(), 0); }
};
TEST_P(VerbsRmaContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Verbs, VerbsRmaContract,
                         RmaContractCasesFor(VerbsFactory("Verbs", [](Settings&) {})),
                         RmaContractCaseName);

// Signals are atomic additions, so that a device without them is left to sockets.
TEST(VerbsRmaTest, WithoutAtomicOperationsThereIsNone) {
  fakeverbs::DeviceSpec device;
  device.atomics = false;
  fakeverbs::SetDevices({device});
  {
    VerbsNetPair pair({});
    EXPECT_EQ(pair.sending().rma(), nullptr);
  }
  fakeverbs::SetDevices({{}});
}

// One device whose operations are atomic among themselves only is enough to keep processors away.
TEST(VerbsRmaTest, ProcessorsAddToWordsOfDevicesThatSayThatTheyMay) {
  fakeverbs::DeviceSpec global, plain;
  global.global_atomics = true;
  plain.name = "fake1";
  plain.ports[0].address = "10.77.0.2";
  for (const bool both : {false, true}) {
    fakeverbs::SetDevices(both ? std::vector{global, plain} : std::vector{global});
    VerbsNetPair pair({});
    ASSERT_NE(pair.sending().rma(), nullptr);
    EXPECT_EQ(pair.sending().rma()->AtomicWithProcessors(), !both);
  }
  fakeverbs::SetDevices({{}});
}

// Whoever holds another network's handle, or that of messages, is not connected.
TEST(VerbsRmaTest, AHandleOfMessagesIsNoneOfOneSidedOperations) {
  VerbsNetPair pair({});
  const auto messages = pair.receiving().Listen(0).value();
  const auto one_sided = pair.receiving().rma()->Listen(0).value();
  const WaitLimits bound = net_contract::Bound();
  EXPECT_EQ(pair.sending().rma()->Connect(0, messages->handle(), bound).status().code(),
            Code::kRemoteError);
  EXPECT_EQ(pair.sending().Connect(0, one_sided->handle(), bound).status().code(),
            Code::kRemoteError);
}

}  // namespace
}  // namespace tutti
