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
