// The litmus tests of device-initiated networking (gin_litmus.h), over memory and over the network.

#include "gin_litmus.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "gin_world.h"

namespace tutti::testing {
namespace {

class GinLitmusTest : public ::testing::TestWithParam<std::tuple<Way, GinLitmus>> {
 protected:
  const WayInEnvironment way_{std::get<0>(GetParam())};
  const GinLitmus& litmus_ = std::get<1>(GetParam());
};

using SlowGinLitmusTest = GinLitmusTest;

const auto kCases = ::testing::Combine(::testing::Values(Way::kMemory, Way::kNetwork),
                                       ::testing::ValuesIn(kGinLitmuses));
std::string NameOfCase(const ::testing::TestParamInfo<std::tuple<Way, GinLitmus>>& instance) {
  return std::string(NameOf(std::get<0>(instance.param))) + "_" + std::get<1>(instance.param).name;
}

TEST_P(GinLitmusTest, SeesNothingWrong) {
  EXPECT_EQ(RunLitmus(litmus_, RanksAreGpus() ? 100 : 1000), 0);
}
INSTANTIATE_TEST_SUITE_P(Over, GinLitmusTest, kCases, NameOfCase);

TEST_P(SlowGinLitmusTest, SeesNothingWrongInAMillionRounds) {
  EXPECT_EQ(RepeatLitmus(litmus_, 1'000'000, 2'000), 0);
}
INSTANTIATE_TEST_SUITE_P(Over, SlowGinLitmusTest, kCases, NameOfCase);

}  // namespace
}  // namespace tutti::testing
