#include "sys/accept_limit.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

TEST(AcceptLimitTest, ClosesTheFirstAndNoneThatLeft) {
  AcceptLimit limit(3);
  std::vector<int> closed;
  const auto enter = [&](int which) {
    return limit.Enter([&, which] { closed.push_back(which); });
  };
  enter(1);
  const AcceptLimit::Number second = enter(2);
  enter(3);
  limit.Leave(second);
  enter(4);
  EXPECT_TRUE(closed.empty());
  enter(5);
  EXPECT_EQ(closed, std::vector<int>{1});
  enter(6);
  EXPECT_EQ(closed, (std::vector<int>{1, 3}));
  EXPECT_EQ(limit.size(), 3u);
  while (limit.CloseFirst()) {
  }
  EXPECT_EQ(closed, (std::vector<int>{1, 3, 4, 5, 6}));
}

TEST(AcceptLimitTest, GivesTheFirstItsTimeWhenTheLimitIsReached) {
  AcceptLimit limit(1);
  EXPECT_TRUE(limit.Admits(3'600'000'000'000));
  limit.Enter([] {});
  EXPECT_FALSE(limit.Admits(3'600'000'000'000));
  EXPECT_TRUE(limit.Admits(0));
}

TEST(AcceptLimitTest, LeavesAProgramItsDescriptors) {
  EXPECT_EQ(AcceptLimit::ShareOf(1024), 256u);
  EXPECT_EQ(AcceptLimit::ShareOf(16), 8u);
  EXPECT_EQ(AcceptLimit::ShareOf(~uint64_t{0}), 2048u);
}

TEST(AcceptLimitTest, HoldsOneDescriptorInReserve) {
  AcceptLimit limit(1);
  EXPECT_FALSE(limit.ReleaseReserve());
  EXPECT_TRUE(limit.RestoreReserve());
  EXPECT_TRUE(limit.RestoreReserve());
  EXPECT_TRUE(limit.ReleaseReserve());
  EXPECT_FALSE(limit.ReleaseReserve());
}

}  // namespace
}  // namespace tutti
