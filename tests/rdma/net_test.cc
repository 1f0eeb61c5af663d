// The contracts of networks and of one-sided operations over verbs, in the virtual machine.

#include "bootstrap/auth.h"
#include "transport/net/net_contract_test.h"
#include "transport/net/rma_contract_test.h"
#include "transport/net/verbs/forms_test.h"
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

NetFactory Factory(const char* device, const std::string& name,
                   const std::function<void(Settings&)>& change) {
  Settings settings;
  settings.ib_hca = device;
  change(settings);
  return {name, [=] { return std::make_unique<VerbsNetPair>(settings); }};
}
NetFactory OverRoce(const std::string& name, const std::function<void(Settings&)>& change) {
  return Factory("=rxe0", name, change);
}
NetFactory OverIwarp(const std::string& name, const std::function<void(Settings&)>& change) {
  return Factory("=siw0", name, change);
}

class VerbsNetContract : public NetContract {};
TEST_P(VerbsNetContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Forms, VerbsNetContract,
                         ::testing::Combine(::testing::ValuesIn(ForEachVerbsForm(OverRoce)),
                                            ::testing::ValuesIn(net_contract::Cases())),
                         NetContractCaseName);
INSTANTIATE_TEST_SUITE_P(Iwarp, VerbsNetContract,
                         ::testing::Combine(::testing::ValuesIn(ForEachVerbsForm(OverIwarp)),
                                            ::testing::ValuesIn(net_contract::Cases())),
                         NetContractCaseName);

class VerbsRmaContract : public RmaContract {};
TEST_P(VerbsRmaContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(OneSided, VerbsRmaContract,
                         RmaContractCasesFor(OverRoce("Verbs", [](Settings&) {})),
                         RmaContractCaseName);

}  // namespace
}  // namespace tutti
