// The contract of networks over verbs, over the stand-in: one queue pair, several in turn, messages
// split over several, messages that end with a write of their own, inline data, and a fabric.

#include "transport/net/net_contract_test.h"
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
INSTANTIATE_TEST_SUITE_P(OneQueuePair, VerbsNetContract,
                         NetContractCasesFor(VerbsFactory("OneQueuePair", [](Settings&) {})),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(InTurn, VerbsNetContract,
                         NetContractCasesFor(VerbsFactory("InTurn",
                                                          [](Settings& s) { s.ib_qps = 3; })),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Split, VerbsNetContract,
                         NetContractCasesFor(VerbsFactory("Split",
                                                          [](Settings& s) {
                                                            s.ib_qps = 4;
                                                            s.ib_split_data = true;
                                                          })),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(SeparateEnd, VerbsNetContract,
                         NetContractCasesFor(VerbsFactory("SeparateEnd",
                                                          [](Settings& s) {
                                                            s.ib_adaptive_routing = "1";
                                                            s.ib_ar_threshold = 1000;
                                                          })),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(
    Inline, VerbsNetContract,
    NetContractCasesFor(VerbsFactory("Inline", [](Settings& s) { s.ib_use_inline = true; })),
    NetContractCaseName);

}  // namespace
}  // namespace tutti
