#include "comm/aside.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace tutti {
namespace {

constexpr int64_t kSoonNs = 50'000'000;

TEST(AsideOutcomesTest, ReturnsTheFirstFailureByNumber) {
  AsideOutcomes outcomes(3, [](size_t) { return false; });
  outcomes.Set(2, InvalidUsage("third"));
  outcomes.Set(1, InvalidUsage("second"));
  outcomes.Set(0, Status::Ok());
  EXPECT_EQ(outcomes.Await().message(), "second");
}

TEST(AsideOutcomesTest, WaitsForWorkOnLiveCommunicatorsBeyondTheDeadline) {
  std::atomic<int> looks = 0;
  AsideOutcomes outcomes(
      1, [&](size_t) { return ++looks > 1 << 30; }, /*end_within_ns=*/0);
  std::thread work([&] {
    while (looks < 3) std::this_thread::yield();
    outcomes.Set(0, Status::Ok());
  });
  EXPECT_TRUE(outcomes.Await().ok());
  EXPECT_GE(looks, 3);
  work.join();
}

TEST(AsideOutcomesTest, GivesUpWorkThatDoesNotEndAfterItsCommunicatorHasStopped) {
  AsideOutcomes outcomes(
      2, [](size_t) { return true; }, kSoonNs);
  outcomes.Set(0, Status::Ok());
  const Status outcome = outcomes.Await();
  EXPECT_EQ(outcome.code(), Code::kTimeout);
  EXPECT_NE(outcome.message().find("1 batches"), std::string::npos) << outcome.message();
}

TEST(AsideOutcomesTest, AsksOnlyAboutWorkThatIsUnderWay) {
  AsideOutcomes outcomes(
      2,
      [](size_t number) {
        EXPECT_EQ(number, 1u);
        return true;
      },
      kSoonNs);
  outcomes.Set(0, Status::Ok());
  EXPECT_EQ(outcomes.Await().code(), Code::kTimeout);
}

}  // namespace
}  // namespace tutti
