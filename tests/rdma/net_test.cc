// The contract of networks over verbs, in the virtual machine: one queue pair, several in turn,
// messages split over several, messages that end with a write of their own, and inline data.

#include "bootstrap/auth.h"
#include "transport/net/net_contract_test.h"
#include "transport/net/verbs/verbs_net.h"

namespace tutti {
namespace {

class VerbsNetPair final : public NetPair {
 public:
  explicit VerbsNetPair(const Settings& settings) {
    VerbsNet::Options options;
    const Key key = RandomKey();
    options.address = ParseSocketAddress("127.0.0.1:0").value();
    for (auto& net : nets_) {
      net = VerbsNet::Create(*loop_, key, settings, options).value();
      EXPECT_TRUE(net->IsViable().ok()) << net->IsViable().message();
    }
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

 private:
  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("net-contract").value();
  std::array<std::unique_ptr<Net>, 2> nets_;
};

NetFactory Factory(const std::string& name, const std::function<void(Settings&)>& change) {
  Settings settings;
  settings.ib_hca = "=rxe0";
  change(settings);
  return {name, [=] { return std::make_unique<VerbsNetPair>(settings); }};
}

class VerbsNetContract : public NetContract {};
TEST_P(VerbsNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(OneQueuePair, VerbsNetContract,
                         NetContractCasesFor(Factory("OneQueuePair", [](Settings&) {})),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(InTurn, VerbsNetContract,
                         NetContractCasesFor(Factory("InTurn", [](Settings& s) { s.ib_qps = 3; })),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Split, VerbsNetContract,
                         NetContractCasesFor(Factory("Split",
                                                     [](Settings& s) {
                                                       s.ib_qps = 4;
                                                       s.ib_split_data = true;
                                                     })),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(SeparateEnd, VerbsNetContract,
                         NetContractCasesFor(Factory("SeparateEnd",
                                                     [](Settings& s) {
                                                       s.ib_adaptive_routing = "1";
                                                       s.ib_ar_threshold = 1000;
                                                     })),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Inline, VerbsNetContract,
                         NetContractCasesFor(Factory("Inline",
                                                     [](Settings& s) { s.ib_use_inline = true; })),
                         NetContractCaseName);

}  // namespace
}  // namespace tutti
