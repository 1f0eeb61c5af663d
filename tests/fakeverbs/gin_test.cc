// Device-initiated networking over verbs whose NICs deliver late and out of order, as far as the
// rules let them: the litmus tests hold. Those that rely on more than is promised fail there, and
// over a NIC that breaks the rules all fail, so that each of them is a test.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <tuple>

#include "device/gin_cases.h"
#include "device/gin_litmus.h"
#include "fake_verbs.h"

namespace tutti::testing {
namespace {

using fakeverbs::Delivery;
using fakeverbs::Order;

class OverVerbs {
 public:
  explicit OverVerbs(const Delivery& delivery) {
    for (const auto& [name, value] : kSettings) setenv(name, value, /*overwrite=*/1);
    SetDelivery(delivery);
  }
  ~OverVerbs() {
    fakeverbs::Reset();
    for (const auto& [name, value] : kSettings) unsetenv(name);
  }
  OverVerbs(const OverVerbs&) = delete;
  OverVerbs& operator=(const OverVerbs&) = delete;

 private:
  static constexpr std::pair<const char*, const char*> kSettings[] = {
      {"NCCL_SHM_DISABLE", "1"}, {"NCCL_NET", "IB"}, {"TUTTI_IBVERBS", TUTTI_FAKE_VERBS_LIBRARY}};
};

struct NamedOrder {
  const char* name;
  Order order;
};
constexpr NamedOrder kOrders[] = {{"AtOnce", Order::kAtOnce},
                                  {"Shuffled", Order::kShuffled},
                                  {"Reversed", Order::kReversed},
                                  {"Forced", Order::kForced}};

class VerbsLitmusTest : public ::testing::TestWithParam<std::tuple<NamedOrder, GinLitmus>> {
 protected:
  const OverVerbs verbs_{{.order = std::get<0>(GetParam()).order}};
  const GinLitmus& litmus_ = std::get<1>(GetParam());
};
using SlowVerbsLitmusTest = VerbsLitmusTest;

const auto kCases =
    ::testing::Combine(::testing::ValuesIn(kOrders), ::testing::ValuesIn(kGinLitmuses));
std::string NameOfCase(
    const ::testing::TestParamInfo<std::tuple<NamedOrder, GinLitmus>>& instance) {
  return std::string(std::get<0>(instance.param).name) + "_" + std::get<1>(instance.param).name;
}

TEST_P(VerbsLitmusTest, SeesNothingWrong) { EXPECT_EQ(RunLitmus(litmus_, 50), 0); }
INSTANTIATE_TEST_SUITE_P(Nics, VerbsLitmusTest, kCases, NameOfCase);

TEST_P(SlowVerbsLitmusTest, SeesNothingWrongInManyRounds) {
  EXPECT_EQ(RepeatLitmus(litmus_, 100'000, 1000), 0);
}
INSTANTIATE_TEST_SUITE_P(Nics, SlowVerbsLitmusTest, kCases, NameOfCase);

class BrokenCardTest : public ::testing::TestWithParam<GinLitmus> {};

// A NIC whose atomic operations overtake the writes before them.
TEST_P(BrokenCardTest, IsNoticed) {
  const OverVerbs verbs({.order = Order::kForced, .atomics_wait = false});
  EXPECT_GT(RunLitmus(GetParam(), 20), 0);
}
INSTANTIATE_TEST_SUITE_P(By, BrokenCardTest,
                         ::testing::Values(kGinLitmuses[0], kGinLitmuses[1], kGinLitmuses[2],
                                           kGinLitmuses[4]),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(WeakLitmusTest, TheOrderOfPutsIsNotToBeTrusted) {
  const GinLitmus weak = {"TrustOrderOfPuts", 1, TrustOrderOfPuts};
  {
    const OverVerbs in_order({.order = Order::kAtOnce});
    EXPECT_EQ(RunLitmus(weak, 100), 0);
  }
  // The data come a millisecond behind the flag, which a busy machine may take to look at them.
  const OverVerbs reversed({.order = Order::kReversed});
  int64_t wrong = 0;
  for (int tries = 0; tries < 50 && wrong == 0; ++tries) wrong = RunLitmus(weak, 100);
  EXPECT_GT(wrong, 0);
}

TEST(WeakLitmusTest, AFlushIsNoArrival) {
  const OverVerbs verbs({.order = Order::kForced});
  EXPECT_EQ(RunLitmus({"TrustFlush", 1, TrustFlush}, 20), 20);
}

}  // namespace
}  // namespace tutti::testing
