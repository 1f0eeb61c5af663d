#include "base/long_wait.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti {
namespace {

constexpr int64_t kMs = 1'000'000, kSecond = 1000 * kMs, kStart = 77 * kSecond;

// A wait that a thread looks at every 50 ms, apart from the time in which its process stood still.
struct WaitCase {
  const char* name;
  double timeout_s;
  double still_at_s, still_for_s;  // 0, 0: the process ran all the time
  double until_s;
  std::vector<double> warned_s;  // the times of the warnings, since the begin
  double over_s;                 // 0: not until the end
};

class LongWaitTest : public ::testing::TestWithParam<WaitCase> {};

TEST_P(LongWaitTest, WarnsAndEnds) {
  const WaitCase& one = GetParam();
  const auto ns = [](double s) { return static_cast<int64_t>(s * 1e9); };
  LongWait wait;
  wait.Begin(kStart);
  std::vector<double> warned_s;
  double over_s = 0;
  for (int64_t at = 50 * kMs; at <= ns(one.until_s) && over_s == 0; at += 50 * kMs) {
    if (at > ns(one.still_at_s) && at < ns(one.still_at_s + one.still_for_s)) continue;
    const LongWait::Due due = wait.Look(kStart + at, ns(one.timeout_s));
    EXPECT_EQ(due.stood_still, one.still_for_s > 1 && at == ns(one.still_at_s + one.still_for_s));
    if (due.over)
      over_s = static_cast<double>(at) / 1e9;
    else if (due.warn)
      warned_s.push_back(static_cast<double>(at) / 1e9);
  }
  EXPECT_EQ(warned_s, one.warned_s);
  EXPECT_EQ(over_s, one.over_s);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, LongWaitTest,
    ::testing::Values(
        WaitCase{"ForEver", 0, 0, 0, 35, {10, 20, 30}, 0},
        WaitCase{"LongTimeOut", 25, 0, 0, 60, {10, 20}, 25},
        WaitCase{"WarnsHalfwayToAShortTimeOut", 4, 0, 0, 60, {2}, 4},
        WaitCase{"AVeryShortTimeOutComesUnannounced", 0.4, 0, 0, 60, {}, 0.4},
        // The process stood still for longer than the time-out: the wait begins anew at 23 s.
        WaitCase{"PauseOfTheWholeJob", 10, 3, 20, 60, {28}, 33},
        WaitCase{"PauseFromTheBeginning", 10, 0, 20, 60, {25}, 30},
        WaitCase{"AShortHaltCounts", 4, 1, 0.9, 60, {2}, 4}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST(LongWaitTest, AsksSoonAndThenAtTheInterval) {
  for (const auto& [timeout_s, asked_ms] :
       {std::pair(0, std::vector<int64_t>{200, 5200, 10200}),
        std::pair(8, std::vector<int64_t>{200, 2200, 4200, 6200})}) {
    LongWait wait;
    wait.Begin(kStart);
    std::vector<int64_t> asked;
    for (int64_t ms = 20; ms < 12'000; ms += 20) {
      const LongWait::Due due = wait.Look(kStart + ms * kMs, timeout_s * kSecond);
      if (due.over) break;
      if (due.ask) asked.push_back(ms);
    }
    EXPECT_EQ(asked, asked_ms) << timeout_s;
  }
}

}  // namespace
}  // namespace tutti
