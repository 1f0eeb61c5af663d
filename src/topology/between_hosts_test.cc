#include "topology/between_hosts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "topology/search.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

// Returns what host `host` of many alike machines offers, its ranks following those of the hosts
// before.
HostOffer OfferOf(const std::string& machine, int first_rank) {
  const Graph graph = TestGraph(TestMachine(TestDataPath("machines/" + machine + ".xml"))).graph;
  const Paths paths = ComputePaths(graph, {});
  Demand demand;
  demand.inter_host = true;
  const auto ring = Search(graph, paths, demand);
  demand.pattern = Pattern::kTree;
  const auto tree = Search(graph, paths, demand);
  EXPECT_TRUE(ring.ok() && tree.ok());
  auto offer = MakeOffer(graph, ring.value(), tree.value());
  EXPECT_TRUE(offer.ok()) << offer.status().message();
  for (ChannelOffer* one : {&offer.value().ring, &offer.value().tree}) {
    for (int32_t& rank : one->ranks) rank += first_rank;
  }
  return offer.value();
}

std::vector<HostOffer> Alike(const std::string& machine, uint32_t hosts) {
  const HostOffer first = OfferOf(machine, 0);
  std::vector<HostOffer> offers(hosts, first);
  for (uint32_t host = 0; host < hosts; ++host) {
    const int32_t shift = static_cast<int32_t>(host * first.rank_count);
    for (ChannelOffer* one : {&offers[host].ring, &offers[host].tree}) {
      for (int32_t& rank : one->ranks) rank += shift;
    }
  }
  return offers;
}

void ExpectRings(const JobChannels& job) {
  for (uint32_t channel = 0; channel < job.ring_channels; ++channel) {
    uint32_t rank = 0;
    for (uint32_t step = 0; step < job.rank_count; ++step) {
      const uint32_t next = static_cast<uint32_t>(job.RingNext(channel, rank));
      ASSERT_LT(next, job.rank_count);
      EXPECT_EQ(job.ring_prev[size_t{channel} * job.rank_count + next], static_cast<int32_t>(rank));
      rank = next;
      // Back at the start after all ranks, and not before.
      EXPECT_EQ(rank == 0, step + 1 == job.rank_count) << "channel " << channel;
    }
  }
}

// Depth of the tree, 0 when it is none.
uint32_t TreeDepth(const JobChannels& job, uint32_t channel) {
  std::vector<std::pair<uint32_t, uint32_t>> reached;  // rank, depth
  for (uint32_t rank = 0; rank < job.rank_count; ++rank) {
    if (job.Tree(channel, rank).parent < 0) reached.emplace_back(rank, 1);
  }
  if (reached.size() != 1) return 0;
  uint32_t deepest = 1;
  for (size_t i = 0; i < reached.size(); ++i) {
    const auto [rank, depth] = reached[i];
    deepest = std::max(deepest, depth);
    for (const int32_t child : job.Tree(channel, rank).children) {
      if (child < 0) continue;
      EXPECT_EQ(job.Tree(channel, static_cast<uint32_t>(child)).parent, static_cast<int32_t>(rank));
      reached.emplace_back(static_cast<uint32_t>(child), depth + 1);
    }
    if (reached.size() > job.rank_count) return 0;
  }
  return reached.size() == job.rank_count ? deepest : 0;
}

TEST(JoinHosts, MakesRingsAndTreesOfAllRanks) {
  for (const char* machine : {"dgx-h100", "dgx1-v100", "gh200", "pcie-a10x4", "dgx-h100-7gpu"}) {
    const HostOffer one = OfferOf(machine, 0);
    for (const uint32_t hosts : {1u, 2u, 3u, 4u, 5u, 8u, 13u, 32u}) {
      SCOPED_TRACE(std::string(machine) + " x " + std::to_string(hosts));
      const auto job = JoinHosts(Alike(machine, hosts));
      ASSERT_TRUE(job.ok()) << job.status().message();
      EXPECT_EQ(job.value().rank_count, one.rank_count * hosts);
      ExpectRings(job.value());
      uint32_t log = 1;
      while ((1u << log) <= hosts) ++log;
      for (uint32_t channel = 0; channel < job.value().tree_channels; ++channel) {
        const uint32_t depth = TreeDepth(job.value(), channel);
        ASSERT_GT(depth, 0u) << "tree " << channel;
        EXPECT_LE(depth, 2 * (log + 1) + one.rank_count);
      }
    }
  }
}

TEST(JoinHosts, KeepsDataOnItsRail) {
  const std::vector<HostOffer> offers = Alike("dgx-h100", 4);
  const auto job = JoinHosts(offers);
  ASSERT_TRUE(job.ok());
  const ChannelOffer& ring = offers[0].ring;
  ASSERT_NE(ring.rail_in, ring.rail_out) << "these rings were to cross NICs";
  // A channel's first and last ranks show by which rail it enters and leaves a host.
  const auto rail = [&](int32_t rank, bool in) {
    for (uint32_t c = 0; c < ring.channels; ++c) {
      const size_t at = c * 8 + (in ? 0 : 7);
      if (ring.ranks[at] == rank % 8) return in ? ring.rail_in[c] : ring.rail_out[c];
    }
    return -1;
  };
  uint32_t joints = 0;
  for (uint32_t c = 0; c < job.value().ring_channels; ++c) {
    for (int32_t rank = 0; rank < 32; ++rank) {
      const int32_t next = job.value().RingNext(c, static_cast<uint32_t>(rank));
      if (rank / 8 == next / 8) continue;
      ++joints;
      EXPECT_EQ(rail(rank, false), rail(next, true)) << rank << " to " << next;
    }
  }
  EXPECT_EQ(joints, 4 * job.value().ring_channels);
}

TEST(JoinHosts, JoinsHostsThatAreNotAlike) {
  std::vector<HostOffer> offers;
  int rank = 0;
  for (const char* machine : {"dgx-h100", "dgx1-v100", "dgx-h100-7gpu", "gh200"}) {
    offers.push_back(OfferOf(machine, rank));
    rank += static_cast<int>(offers.back().rank_count);
  }
  const auto job = JoinHosts(offers);
  ASSERT_TRUE(job.ok()) << job.status().message();
  EXPECT_EQ(job.value().ring_channels, 2u);
  EXPECT_DOUBLE_EQ(job.value().ring_bandwidth_gbps, 12);
  ExpectRings(job.value());
  for (uint32_t c = 0; c < job.value().tree_channels; ++c) EXPECT_GT(TreeDepth(job.value(), c), 0u);
}

TEST(JoinHosts, RefusesOffersThatDoNotFit) {
  const std::vector<HostOffer> good = Alike("dgx1-v100", 2);
  const auto error = [](const std::vector<HostOffer>& offers) {
    const auto job = JoinHosts(offers);
    return job.ok() ? "" : std::string(job.status().message());
  };
  EXPECT_EQ(error(good), "");
  EXPECT_FALSE(error({}).empty());
  EXPECT_EQ(error({good[0], good[0]}), "rank 0 is on host 0 and on host 1");
  std::vector<HostOffer> bad = good;
  bad[1].ring.ranks[10] = bad[1].ring.ranks[11];
  EXPECT_NE(error(bad).find("twice"), std::string::npos);
  bad = good;
  bad[1].tree.ranks[3] = 1000;
  EXPECT_EQ(error(bad), "rank 1000 of tree channel 0 is not one of host 1");
  bad = good;
  bad[1].tree.ranks.pop_back();
  EXPECT_FALSE(error(bad).empty());
  bad = good;
  bad[0].ring.channels = 0;
  EXPECT_FALSE(error(bad).empty());
}

TEST(PlaceInTree, MakesTwoTreesWithHostsInsideOneAtMost) {
  for (uint32_t hosts = 1; hosts <= 130; ++hosts) {
    for (uint32_t host = 0; host < hosts; ++host) {
      int inside = 0;
      for (const bool second : {false, true}) {
        const HostPlace place = PlaceInTree(host, hosts, second);
        inside += place.children[0] >= 0 ? 1 : 0;
        for (const int32_t child : place.children) {
          if (child < 0) continue;
          EXPECT_EQ(PlaceInTree(static_cast<uint32_t>(child), hosts, second).parent,
                    static_cast<int32_t>(host));
        }
        // Up to the root in at most as many steps as there are levels.
        int32_t at = static_cast<int32_t>(host);
        uint32_t steps = 0;
        while (at >= 0 && steps <= 9) {
          at = PlaceInTree(static_cast<uint32_t>(at), hosts, second).parent;
          ++steps;
        }
        EXPECT_LT(at, 0) << hosts << " hosts";
      }
      EXPECT_LE(inside, 1) << "host " << host << " of " << hosts;
    }
  }
}

}  // namespace
}  // namespace tutti::topology
