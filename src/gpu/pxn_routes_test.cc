#include "gpu/pxn_routes.h"

#include <gtest/gtest.h>

#include <numeric>

namespace tutti {
namespace {

using Pairs = std::vector<std::pair<int, int>>;
using Level = PxnRoutes::Level;

std::vector<int> ProcessEach(size_t ranks) {
  std::vector<int> processes(ranks);
  std::iota(processes.begin(), processes.end(), 0);
  return processes;
}

PxnRoutes RoutesOf(const std::vector<uint64_t>& hosts, const std::vector<int32_t>& nics) {
  return PxnRoutes(Level::kAlways, {hosts, ProcessEach(hosts.size()), nics,
                                    std::vector<uint64_t>(hosts.size(), 0)});
}

TEST(PxnRoutesTest, ARankOfTheReceiversRailSends) {
  // Two hosts of two, each rank with a NIC of its own.
  const PxnRoutes routes = RoutesOf({1, 1, 2, 2}, {0, 1, 0, 1});
  EXPECT_TRUE(routes.any());
  EXPECT_EQ(routes.SenderOf(0, 2), 0);
  EXPECT_EQ(routes.SenderOf(0, 3), 1);
  EXPECT_EQ(routes.SenderOf(1, 2), 0);
  EXPECT_EQ(routes.SenderOf(0, 1), 0);
  EXPECT_EQ(routes.PairsThrough(1), (Pairs{{0, 3}}));
  EXPECT_EQ(routes.PairsThrough(2), (Pairs{{3, 0}}));
}

TEST(PxnRoutesTest, WithOneNicEveryRankSendsByItself) {
  const PxnRoutes routes = RoutesOf({1, 1, 2, 2}, {0, 0, 0, 0});
  EXPECT_FALSE(routes.any());
  EXPECT_EQ(routes.SenderOf(0, 3), 0);
  EXPECT_EQ(PxnRoutes().SenderOf(5, 7), 5);
  EXPECT_EQ(PxnRoutes().NicOf(5, 7), -1);
}

TEST(PxnRoutesTest, ARailThatTheHostHasNotIsReachedByTheSendersNic) {
  const PxnRoutes routes = RoutesOf({1, 1, 2, 2}, {0, 1, 2, 1});
  EXPECT_EQ(routes.SenderOf(0, 2), 0);
  EXPECT_EQ(routes.SenderOf(0, 3), 1);
  EXPECT_EQ(routes.SenderOf(2, 0), 2);
}

TEST(PxnRoutesTest, RanksThatShareANicTakeTurns) {
  const PxnRoutes routes = RoutesOf({1, 1, 1, 2, 2}, {0, 1, 1, 1, 1});
  EXPECT_EQ(routes.SenderOf(0, 3), 2);
  EXPECT_EQ(routes.SenderOf(0, 4), 1);
}

// Rank 0 reaches NIC 1 of its host by PCI switches, and rank 1 reaches only its own NIC.
TEST(PxnRoutesTest, TheLevelSaysWhetherANearNicIsUsedWithoutAnotherRank) {
  const std::vector<uint64_t> hosts = {1, 1, 2, 2}, near = {3, 2, 1, 2};
  const std::vector<int32_t> nics = {0, 1, 0, 1};
  const std::vector<int> processes = ProcessEach(4);
  const PxnRoutes useful(Level::kWhenUseful, {hosts, processes, nics, near});
  EXPECT_EQ(useful.SenderOf(0, 3), 0);
  EXPECT_EQ(useful.NicOf(0, 3), 1);
  EXPECT_EQ(useful.NicOf(0, 2), -1);
  EXPECT_EQ(useful.SenderOf(1, 2), 0);
  EXPECT_EQ(useful.PairsThrough(1), Pairs());
  const PxnRoutes always(Level::kAlways, {hosts, processes, nics, near});
  EXPECT_EQ(always.SenderOf(0, 3), 1);
  const PxnRoutes never(Level::kNever, {hosts, processes, nics, near});
  EXPECT_FALSE(never.any());
  EXPECT_EQ(never.SenderOf(1, 2), 1);
  EXPECT_EQ(never.NicOf(0, 3), -1);
}

// Ranks 0 and 1 belong to one process, ranks 2 and 3 to two processes.
TEST(PxnRoutesTest, RanksOfOneProcessSendForNobody) {
  const std::vector<uint64_t> hosts = {1, 1, 2, 2}, near = {1, 2, 1, 2};
  const std::vector<int32_t> nics = {0, 1, 0, 1};
  const std::vector<int> processes = {0, 0, 2, 3};
  const PxnRoutes routes(Level::kAlways, {hosts, processes, nics, near});
  EXPECT_EQ(routes.SenderOf(0, 3), 0);
  EXPECT_EQ(routes.NicOf(0, 3), 1);
  EXPECT_FALSE(routes.IsNear(0, 3));
  EXPECT_EQ(routes.SenderOf(2, 1), 3);
  EXPECT_EQ(routes.PairsThrough(1), Pairs());
}

// A thread that ends rank 0 before rank 1 does not wait for rank 2. The process of rank 2 ends rank
// 2 before rank 3. Rank 4 is alone.
TEST(PxnRoutesTest, NobodySendsThroughAProcessOfSeveralRanks) {
  const std::vector<uint64_t> hosts = {1, 1, 1, 1, 1, 2, 2, 2}, near(8);
  const std::vector<int32_t> nics = {0, 1, 0, 1, 2, 0, 1, 2};
  const std::vector<int> processes = {0, 0, 1, 1, 2, 3, 4, 5};
  const PxnRoutes routes(Level::kAlways, {hosts, processes, nics, near});
  for (int from = 0; from < 5; ++from) {
    EXPECT_EQ(routes.SenderOf(from, 5), from);
    EXPECT_EQ(routes.SenderOf(from, 6), from);
    EXPECT_EQ(routes.SenderOf(from, 7), 4);
  }
}

TEST(PxnRoutesTest, EveryPairOfManyHostsIsSentByOneRank) {
  std::vector<uint64_t> hosts;
  std::vector<int32_t> nics;
  for (int r = 0; r < 32; ++r) {
    hosts.push_back(static_cast<uint64_t>(r / 8));
    nics.push_back(r % 8 / 2);  // Two ranks share a NIC.
  }
  const PxnRoutes routes = RoutesOf(hosts, nics);
  size_t pairs = 0;
  for (int via = 0; via < 32; ++via) {
    for (const auto& [from, to] : routes.PairsThrough(via)) {
      EXPECT_EQ(routes.SenderOf(from, to), via);
      EXPECT_EQ(hosts[static_cast<size_t>(from)], hosts[static_cast<size_t>(via)]);
      EXPECT_EQ(nics[static_cast<size_t>(to)], nics[static_cast<size_t>(via)]);
      ++pairs;
    }
  }
  // Of the 24 ranks on other hosts, each rank shares its rail with six.
  EXPECT_EQ(pairs, 32u * 18);
}

}  // namespace
}  // namespace tutti
