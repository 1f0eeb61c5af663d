// Tests which ports carry the queue pairs of an end, and when ports are tried again.

#include "transport/net/verbs/port_choice.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

constexpr int64_t kSecondNs = PortChoice::kReturnAfterNs;

TEST(PortChoiceTest, AllActivePortsAreChosen) {
  PortChoice choice(2, 4);
  EXPECT_EQ(choice.Choose(0b1011, 0, 0), PortFlags(0b1011));
  EXPECT_FALSE(choice.misses());
}

TEST(PortChoiceTest, TheOnlyPortIsChosenThoughItIsDown) {
  PortChoice choice(1, 1);
  choice.Suspect(0);
  EXPECT_EQ(choice.Choose(0, 3, 0), PortFlags(1));
  EXPECT_FALSE(choice.misses());
}

TEST(PortChoiceTest, APortWithoutAnAnswerIsLeftForOwnPortsAtOnce) {
  PortChoice choice(2, 3);
  choice.Suspect(1);
  EXPECT_EQ(choice.Choose(0b111, 1, 0), PortFlags(0b101));
  EXPECT_TRUE(choice.misses());
}

TEST(PortChoiceTest, SparesTakeOverFromActivePortsAfterTwoLosses) {
  PortChoice choice(1, 2);
  choice.Suspect(0);
  EXPECT_EQ(choice.Choose(0b11, 1, 0), PortFlags(0b11));
  choice.Suspect(0);
  EXPECT_EQ(choice.Choose(0b11, 2, 0), PortFlags(0b10));
}

TEST(PortChoiceTest, WhereAllPortsAreSuspectsAllAreTriedAgain) {
  PortChoice choice(2, 2);
  choice.Suspect(0);
  choice.Suspect(1);
  EXPECT_EQ(choice.Choose(0b11, 3, 0), PortFlags(0b11));
  EXPECT_FALSE(choice.misses());
}

TEST(PortChoiceTest, AMissedPortReturnsWhenActiveAndEachReturnDoublesTheTime) {
  PortChoice choice(2, 2);
  int64_t now_ns = 0;
  int64_t wait_ns = kSecondNs;
  for (int returns = 0; returns < 10; ++returns) {
    SCOPED_TRACE(returns);
    choice.Choose(0b10, 0, now_ns);
    EXPECT_TRUE(choice.misses());
    EXPECT_FALSE(choice.IsDue(now_ns + wait_ns - 1));
    now_ns += wait_ns;
    EXPECT_TRUE(choice.IsDue(now_ns));
    EXPECT_FALSE(choice.Return(0b10, now_ns));
    EXPECT_FALSE(choice.IsDue(now_ns + wait_ns - 1));
    now_ns += wait_ns;
    EXPECT_TRUE(choice.Return(0b11, now_ns));
    wait_ns = std::min(2 * wait_ns, PortChoice::kReturnAtMostNs);
  }
  EXPECT_EQ(wait_ns, PortChoice::kReturnAtMostNs);
}

TEST(PortChoiceTest, AReturnTrustsActivePortsAgain) {
  PortChoice choice(2, 3);
  choice.Suspect(0);
  EXPECT_EQ(choice.Choose(0b111, 1, 0), PortFlags(0b110));
  EXPECT_TRUE(choice.Return(0b011, kSecondNs));
  EXPECT_EQ(choice.Choose(0b111, 0, kSecondNs), PortFlags(0b111));
}

}  // namespace
}  // namespace tutti
