// The contract of networks over a plugin that others made, which NET_PLUGIN_OF_OTHERS names.
// tests/plugins/third_party runs it.

#include <cstdlib>

#include "transport/net/plugin/plugin_net.h"
#include "transport/testing/net_contract.h"

namespace tutti {
namespace {

std::string PluginOfOthers() {
  const char* const file = std::getenv("NET_PLUGIN_OF_OTHERS");
  return file != nullptr ? file : "";
}

// Both ends have the plugin's first device, in one process.
class PairOfOthers final : public NetPair {
 public:
  PairOfOthers() {
    const auto library = PluginLibrary::Open(PluginOfOthers()).value();
    for (auto& net : nets_) net = PluginNet::Create(library, 7).value();
  }
  Net& sending() override { return *nets_[0]; }
  Net& receiving() override { return *nets_[1]; }

 private:
  std::array<std::unique_ptr<Net>, 2> nets_;
};

class ThirdPartyNetContract : public NetContract {};
TEST_P(ThirdPartyNetContract, Holds) {
  if (PluginOfOthers().empty()) GTEST_SKIP() << "NET_PLUGIN_OF_OTHERS names no plugin";
  Run();
}
INSTANTIATE_TEST_SUITE_P(ThirdParty, ThirdPartyNetContract,
                         NetContractCasesFor({"ThirdParty",
                                              [] { return std::make_unique<PairOfOthers>(); },
                                              size_t{64} << 20}),
                         NetContractCaseName);

}  // namespace
}  // namespace tutti
