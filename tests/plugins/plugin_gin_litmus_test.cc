// Litmus tests over a plugin that keeps puts and weak signals back and carries them out in another
// order, as plugins may: what relies on more than is promised is seen to be wrong, so that what is
// promised could be, too.

#include <gtest/gtest.h>

#include <string>

#include "device/gin_litmus.h"
#include "testing/ranks.h"

namespace tutti::testing {
namespace {

class PluginLitmusTest : public ::testing::TestWithParam<GinLitmus> {
 private:
  // The plugin reads once whether it reorders: all tests of this program have it so.
  const Environment reordered_{Environment::Settings{
      {"NCCL_SHM_DISABLE", "1"}, {"NCCL_GIN_PLUGIN", GIN_PLUGIN}, {"EXAMPLE_GIN_REORDER", "1"}}};
};
using PluginWeakLitmusTest = PluginLitmusTest;

std::string NameOfLitmus(const ::testing::TestParamInfo<GinLitmus>& instance) {
  return instance.param.name;
}

TEST_P(PluginLitmusTest, SeesNothingWrong) { EXPECT_EQ(RunLitmus(GetParam(), 100), 0); }
INSTANTIATE_TEST_SUITE_P(By, PluginLitmusTest, ::testing::ValuesIn(kGinLitmuses), NameOfLitmus);

TEST_P(PluginWeakLitmusTest, SeesWhatIsNotPromised) {
  int64_t wrong = 0;
  for (int tries = 0; tries < 50 && wrong == 0; ++tries) wrong = RunLitmus(GetParam(), 200);
  EXPECT_GT(wrong, 0);
}
INSTANTIATE_TEST_SUITE_P(By, PluginWeakLitmusTest,
                         ::testing::Values(GinLitmus{"TrustOrderOfPuts", 1, TrustOrderOfPuts},
                                           GinLitmus{"TrustWeakSignal", 1, TrustWeakSignal},
                                           GinLitmus{"TrustFlush", 1, TrustFlush}),
                         NameOfLitmus);

}  // namespace
}  // namespace tutti::testing
