// Tests that the trees of AllReduces bring every rank the sum of all ranks, in FIFOs of one slot,
// and how trees share the hosts' networks.

#include "gpu/channel_trees.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include "backend/cuda/tree_args.h"
#include "gpu/testing/rank_steps.h"

namespace tutti {
namespace {

// Describes the hosts of a job by their numbers of ranks. Ranks are numbered host by host.
struct Cluster {
  std::vector<int> hosts;
  bool backwards = false;

  int num_ranks() const { return std::accumulate(hosts.begin(), hosts.end(), 0); }
  std::vector<uint64_t> HostOfRanks() const {
    std::vector<uint64_t> of;
    for (size_t h = 0; h < hosts.size(); ++h) of.insert(of.end(), static_cast<size_t>(hosts[h]), h);
    return of;
  }
  // Every second channel has the reverse order.
  std::vector<ChannelTrees> Trees(int channels) const {
    std::vector<std::vector<int>> rings(static_cast<size_t>(channels));
    for (size_t c = 0; c < rings.size(); ++c) {
      rings[c].resize(static_cast<size_t>(num_ranks()));
      std::iota(rings[c].begin(), rings[c].end(), 0);
      if (backwards == (c % 2 == 0)) std::reverse(rings[c].begin(), rings[c].end());
    }
    std::vector<ChannelTrees> trees;
    for (int r = 0; r < num_ranks(); ++r) trees.emplace_back(HostOfRanks(), r, rings);
    return trees;
  }
};

const Cluster kClusters[] = {{{1, 1}},
                             {{2, 2}},
                             {{1, 1, 1}},
                             {{1, 1, 1, 1}},
                             {{3, 3, 3}},
                             {{3, 5}},
                             {{1, 4, 2, 2, 1}},
                             {{4, 4}, true},
                             {{2, 1}, true},
                             {{2, 2, 2, 2, 2}},
                             {std::vector<int>(17, 1)}};

// Runs all nodes of one tree for `slices` slices, each node as soon as possible. A slice holds the
// letters of the added ranks. Returns each rank's output, or nothing where nodes wait for ever.
std::vector<std::vector<std::string>> RunTree(const std::vector<ChannelTrees>& ranks, uint32_t tree,
                                              size_t slices) {
  struct Actor {
    size_t rank;
    const TreeNode* node;
  };
  std::vector<Actor> actors;
  for (size_t r = 0; r < ranks.size(); ++r)
    for (const TreeNode& node : ranks[r].Nodes(tree)) actors.push_back({r, &node});
  std::map<std::tuple<int, int, uint32_t>, std::deque<std::string>> fifos;
  std::vector<std::vector<std::string>> outputs(ranks.size());
  const std::vector<size_t> counts(actors.size(), slices);
  const bool ended = RunRankSteps(counts, [&](size_t a, size_t) {
    const auto [rank, node] = actors[a];
    const int me = static_cast<int>(rank);
    if (!node->IsUsed()) return true;
    for (const int peer : node->from)
      if (fifos[{peer, me, node->from_channel}].empty()) return false;
    for (const int peer : node->to)
      if (!fifos[{me, peer, node->to_channel}].empty()) return false;
    std::string slice;
    for (const int peer : node->from) {
      slice += fifos[{peer, me, node->from_channel}].front();
      fifos[{peer, me, node->from_channel}].pop_front();
    }
    if (node->reads) slice += static_cast<char>('a' + me);
    std::sort(slice.begin(), slice.end());
    for (const int peer : node->to) fifos[{me, peer, node->to_channel}].push_back(slice);
    if (node->writes) outputs[rank].push_back(slice);
    return true;
  });
  for (const auto& [key, fifo] : fifos) EXPECT_TRUE(fifo.empty());
  if (!ended) outputs.clear();
  return outputs;
}

TEST(ChannelTreesTest, EveryRankGetsTheSumOfAll) {
  for (const Cluster& cluster : kClusters) {
    const std::vector<ChannelTrees> ranks = cluster.Trees(8);
    std::string all;
    for (int r = 0; r < cluster.num_ranks(); ++r) all += static_cast<char>('a' + r);
    ASSERT_EQ(ranks[0].size(), 4u);
    for (uint32_t tree = 0; tree < 4; ++tree) {
      SCOPED_TRACE(::testing::Message() << cluster.hosts.size() << " hosts, tree " << tree);
      const auto outputs = RunTree(ranks, tree, 5);
      ASSERT_EQ(outputs.size(), ranks.size()) << "nodes wait for one another";
      for (const auto& output : outputs) EXPECT_EQ(output, std::vector<std::string>(5, all));
    }
  }
}

// A channel has one FIFO for each side in a window. A rank may therefore have only one neighbour of
// its host on each side of a channel.
TEST(ChannelTreesTest, ANodeHasFewLinksAndOneInItsHost) {
  for (const Cluster& cluster : kClusters) {
    const std::vector<uint64_t> host = cluster.HostOfRanks();
    const std::vector<ChannelTrees> ranks = cluster.Trees(8);
    for (size_t r = 0; r < ranks.size(); ++r)
      for (uint32_t tree = 0; tree < 4; ++tree)
        for (const TreeNode& node : ranks[r].Nodes(tree))
          for (const auto& links : {node.from, node.to}) {
            EXPECT_LE(links.size(), cuda::kMostTreeLinks);
            EXPECT_LE(
                std::count_if(links.begin(), links.end(),
                              [&](int peer) { return host[static_cast<size_t>(peer)] == host[r]; }),
                1);
          }
  }
}

TEST(ChannelTreesTest, HeadsAndInnerHostsTakeTurns) {
  const Cluster cluster = {{4, 4, 4, 4, 4, 4}};
  const std::vector<uint64_t> host = cluster.HostOfRanks();
  const std::vector<ChannelTrees> ranks = cluster.Trees(8);
  for (uint32_t tree = 0; tree < 4; ++tree)
    for (size_t r = 0; r < ranks.size(); ++r) {
      bool crosses = false;
      for (const TreeNode& node : ranks[r].Nodes(tree))
        for (const int peer : node.to) crosses |= host[static_cast<size_t>(peer)] != host[r];
      EXPECT_EQ(crosses, r % 4 == tree) << "rank " << r << ", tree " << tree;
    }
  // In two trees together every host sends equally often, except for one send at the roots.
  for (uint32_t first : {0u, 2u})
    for (size_t h = 0; h < 6; ++h) {
      size_t sends = 0;
      for (uint32_t tree : {first, first + 1})
        for (const TreeNode& node : ranks[4 * h + tree].Nodes(tree))
          for (const int peer : node.to) sends += host[static_cast<size_t>(peer)] != h;
      EXPECT_GE(sends, 2u);
      EXPECT_LE(sends, 4u);
    }
}

// A rank that heads two trees sends by its NIC as often as its peers, except for one send at the
// roots.
TEST(ChannelTreesTest, ARankThatHeadsTwoTreesIsInnerInOne) {
  for (const Cluster& cluster : {Cluster{{2, 2, 2, 2}}, Cluster{{1, 1, 1, 1}}}) {
    const std::vector<uint64_t> host = cluster.HostOfRanks();
    const int channels = 4 * cluster.hosts[0];
    const std::vector<ChannelTrees> ranks = cluster.Trees(channels);
    for (size_t r = 0; r < ranks.size(); ++r) {
      int64_t sends = 0;
      for (uint32_t tree = 0; tree < ranks[r].size(); ++tree)
        for (const TreeNode& node : ranks[r].Nodes(tree))
          sends += std::count_if(node.to.begin(), node.to.end(), [&](int peer) {
            return host[static_cast<size_t>(peer)] != host[r];
          });
      EXPECT_GE(sends, 2) << "rank " << r << " of " << ranks.size();
      EXPECT_LE(sends, 4) << "rank " << r << " of " << ranks.size();
    }
  }
}

TEST(ChannelTreesTest, OneHostOrOneChannelHasNone) {
  EXPECT_EQ(Cluster{{4}}.Trees(8)[0].size(), 0u);
  EXPECT_EQ((Cluster{{2, 2}}).Trees(1)[0].size(), 0u);
  EXPECT_EQ((Cluster{{2, 2}}).Trees(3)[0].size(), 1u);
}

}  // namespace
}  // namespace tutti
