#include "gpu/channel_rings.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

constexpr uint64_t kA = 7, kB = 9, kC = 4;

// Two hosts with alternating ranks, and two channels whose rings visit the ranks in different
// orders.
TEST(ChannelRingsTest, SeeTheRanksOfEachHostInTheOrderOfTheirChannel) {
  const std::vector<uint64_t> hosts = {kA, kB, kA, kB, kA, kB};
  const ChannelRings rings(hosts, 3, {{0, 2, 4, 1, 3, 5}, {4, 0, 2, 5, 1, 3}});
  ASSERT_TRUE(rings.HasTwoLevels());
  EXPECT_EQ(rings.num_hosts(), 2);
  EXPECT_EQ(rings.local_ranks(), 3);
  EXPECT_EQ(rings.RingNeighbour(0, 1), 5);
  EXPECT_EQ(rings.RingNeighbour(0, -1), 1);
  EXPECT_EQ(rings.RingNeighbour(1, 1), 4);
  EXPECT_EQ(rings.HostNeighbour(0, 1), 5);
  EXPECT_EQ(rings.HostNeighbour(1, 1), 5);
  EXPECT_EQ(rings.HostNeighbour(1, -1), 1);
  // The rail has the same local rank of the other host.
  EXPECT_EQ(rings.RailNeighbour(1), 2);
  EXPECT_EQ(rings.RailNeighbour(-1), 2);
  const kernels::TwoLevelView view = rings.LevelsOf(1, rings.tables().data());
  EXPECT_EQ(view.host, 1);
  EXPECT_EQ(view.local, 1);
  EXPECT_EQ(view.ring.At(view.ring.index), view.local);
  EXPECT_EQ(view.Rank(0, 2), 4);
  EXPECT_EQ(view.Rank(1, 0), 1);
}

TEST(ChannelRingsTest, HaveTwoLevelsOnlyWhereHostsAreAlikeAndHaveSeveralRanks) {
  const auto has = [](const std::vector<uint64_t>& hosts) {
    std::vector<int> ring(hosts.size());
    for (size_t r = 0; r < ring.size(); ++r) ring[r] = static_cast<int>(r);
    const ChannelRings rings(hosts, 1, {ring});
    EXPECT_EQ(rings.RingNeighbour(0, -1), 0);
    return rings.HasTwoLevels();
  };
  EXPECT_TRUE(has({kA, kA, kB, kB}));
  EXPECT_FALSE(has({kA, kA, kB}));
  EXPECT_FALSE(has({kA, kB, kC}));
  EXPECT_FALSE(has({kA, kA, kA}));
}

}  // namespace
}  // namespace tutti
