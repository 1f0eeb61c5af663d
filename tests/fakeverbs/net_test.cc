// The contract of networks over verbs, over the stand-in.

#include "transport/testing/net_contract.h"
#include "transport/testing/verbs_forms.h"
#include "verbs_net_pair.h"

namespace tutti {

std::string FakeVerbsLibrary() { return TUTTI_FAKE_VERBS_LIBRARY; }

namespace {

// Nothing is left behind: the stand-in counts its objects.
class VerbsNetContract : public NetContract {
 protected:
  ~VerbsNetContract() override { EXPECT_EQ(fakeverbs::ObjectsAlive(), 0); }
};
TEST_P(VerbsNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Forms, VerbsNetContract,
                         ::testing::Combine(::testing::ValuesIn(ForEachVerbsForm(VerbsFactory)),
                                            ::testing::ValuesIn(net_contract::Cases())),
                         NetContractCaseName);

}  // namespace
}  // namespace tutti
