#include "sys/guests.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

TEST(GuestsTest, TheFirstGivesWayAndThoseWhoLeftDoNot) {
  Guests guests(3);
  std::vector<int> dismissed;
  const auto enter = [&](int who) { return guests.Enter([&, who] { dismissed.push_back(who); }); };
  enter(1);
  const Guests::Number second = enter(2);
  enter(3);
  guests.Leave(second);
  enter(4);
  EXPECT_TRUE(dismissed.empty());
  enter(5);
  EXPECT_EQ(dismissed, std::vector<int>{1});
  enter(6);
  EXPECT_EQ(dismissed, (std::vector<int>{1, 3}));
  EXPECT_EQ(guests.size(), 3u);
  while (guests.DismissFirst()) {
  }
  EXPECT_EQ(dismissed, (std::vector<int>{1, 3, 4, 5, 6}));
}

TEST(GuestsTest, AGuestHasItsGraceWhenThereIsNoRoom) {
  Guests guests(1);
  EXPECT_TRUE(guests.Admits(3'600'000'000'000));
  guests.Enter([] {});
  EXPECT_FALSE(guests.Admits(3'600'000'000'000));
  EXPECT_TRUE(guests.Admits(0));
}

TEST(GuestsTest, TheShareLeavesAProgramItsDescriptors) {
  EXPECT_EQ(Guests::ShareOf(1024), 256u);
  EXPECT_EQ(Guests::ShareOf(16), 8u);
  EXPECT_EQ(Guests::ShareOf(~uint64_t{0}), 2048u);
}

}  // namespace
}  // namespace tutti
