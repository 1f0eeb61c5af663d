#include "plan/crossings.h"

#include <gtest/gtest.h>

#include <vector>

namespace tutti {
namespace {

using enum Collective;
using enum Algorithm;

TEST(CrossingsTest, HostsAreEvenWherePairsOfRanksFitThem) {
  const auto layout = [](std::vector<int> leader) { return HostLayoutOf(leader); };
  EXPECT_EQ(layout({0, 0, 2, 2}).count, 2);
  EXPECT_TRUE(layout({0, 0, 2, 2}).even);
  EXPECT_TRUE(layout({0, 0, 2, 2}).in_order);
  EXPECT_TRUE(layout({0, 1, 0, 1}).even);
  EXPECT_FALSE(layout({0, 1, 0, 1}).in_order);
  EXPECT_FALSE(layout({0, 0, 0, 3}).even);
  EXPECT_TRUE(layout({0, 0, 0, 3}).in_order);
  EXPECT_FALSE(layout({0, 0, 0, 3, 3, 3}).even);
  EXPECT_FALSE(layout({0, 1, 2}).even);
  EXPECT_TRUE(layout({0, 1, 2, 3}).even);
}

TEST(CrossingsTest, PairsOfRanksCrossOnceForEachDoublingOfHosts) {
  const HostLayout two = {.count = 2, .even = true, .in_order = true};
  const HostLayout mixed = {.count = 2, .even = true, .in_order = false};
  const HostLayout uneven = {.count = 2, .even = false, .in_order = true};
  EXPECT_EQ(CrossingsOf(kAllGather, kRecursiveDoubling, 8, two), 1);
  EXPECT_EQ(CrossingsOf(kReduceScatter, kRecursiveHalving, 8, two), 1);
  EXPECT_EQ(CrossingsOf(kAllReduce, kRecursiveDoubling, 8, two), 1);
  // The places of a ring are ordered by host, the numbers of ranks may not be.
  EXPECT_EQ(CrossingsOf(kAllGather, kRecursiveDoubling, 8, mixed), 1);
  EXPECT_EQ(CrossingsOf(kAllReduce, kRecursiveDoubling, 8, mixed), 3);
  EXPECT_EQ(CrossingsOf(kAllReduce, kRecursiveDoubling, 6, uneven), 4);
  EXPECT_EQ(CrossingsOf(kReduceScatter, kRecursiveHalving, 6, uneven), 3);
}

TEST(CrossingsTest, TwoLevelsCrossOnceForEachDoublingOfHosts) {
  const HostLayout two = HostLayoutOf(std::vector<int>{0, 1, 0, 0, 1});
  EXPECT_EQ(two.fewest, 2);
  EXPECT_EQ(two.most, 3);
  const HostLayout three = {.count = 3, .fewest = 3, .most = 3};
  for (const Collective collective : {kAllReduce, kAllGather, kReduceScatter, kBarrier})
    EXPECT_EQ(CrossingsOf(collective, kTwoLevel, 5, two), 1);
  EXPECT_EQ(CrossingsOf(kAllGather, kTwoLevel, 9, three), 2);
  EXPECT_EQ(CrossingsOf(kAllReduce, kTwoLevel, 9, three), 3)
      << "one host hands its part to another";
}

TEST(CrossingsTest, ARingCrossesEveryBorder) {
  const HostLayout two = {.count = 2, .even = true, .in_order = true};
  EXPECT_EQ(CrossingsOf(kAllGather, kRing, 2, two), 1);
  EXPECT_EQ(CrossingsOf(kAllGather, kRing, 8, two), 2);
  EXPECT_EQ(CrossingsOf(kAllReduce, kRing, 2, two), 2);
  EXPECT_EQ(CrossingsOf(kAllReduce, kRing, 8, two), 4);
  EXPECT_EQ(CrossingsOf(kBroadcast, kRing, 8, two), 1);
  EXPECT_EQ(CrossingsOf(kAllReduce, kRing, 8, HostLayout{}), 0);
}

TEST(CrossingsTest, NearHostsCostNothingMoreAndFarOnesRoundFigures) {
  EXPECT_EQ(CountedNetworkUs(0), 0);
  EXPECT_EQ(CountedNetworkUs(99), 0);
  EXPECT_EQ(CountedNetworkUs(100), 128);
  for (const uint32_t measured : {1000u, 1024u, 1100u, 1400u})
    EXPECT_EQ(CountedNetworkUs(measured), 1024) << measured;
}

}  // namespace
}  // namespace tutti
