#pragma once

// Makes the channels of the job from the channels of each host: rings joined host to host through
// the right NICs, and two trees over the hosts for each chain.
//
// Every rank calls JoinHosts with the offers of all hosts, in one order, and comes to the same
// answer: it is a pure function of them, made with whole numbers only. May be called from any
// thread.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "topology/channels.h"
#include "topology/graph.h"

namespace tutti::topology {

// The channels of one pattern as a host offers them to the others: by ranks, not by its own nodes.
struct ChannelOffer {
  Pattern pattern = Pattern::kRing;
  uint32_t channels = 0;
  double bandwidth_intra_gbps = 0;  // GB/s per channel
  double bandwidth_inter_gbps = 0;
  std::vector<int32_t> ranks;    // One channel after the other, each with all ranks of the host.
  std::vector<int32_t> rail_in;  // per channel: the number of the port it comes in by, -1 for none,
  std::vector<int32_t> rail_out;  // and leaves by
};

struct HostOffer {
  uint32_t rank_count = 0;  // This host has so many ranks.
  ChannelOffer ring;
  ChannelOffer tree;
};

// Returns what a host offers. InvalidArgument when a device of the channels is no rank's.
[[nodiscard]] Result<HostOffer> MakeOffer(const Graph& graph, const Channels& ring,
                                          const Channels& tree);

inline constexpr size_t kMostChildren = 3;

struct TreePlace {
  int32_t parent = -1;                                      // -1: the root
  std::array<int32_t, kMostChildren> children{-1, -1, -1};  // those that are there come first
};

// Says who is next to whom, for all ranks. Trees come in twos: tree channels c and c +
// tree_channels / 2 use the same chain inside hosts, and of their trees over the hosts each host is
// inside one at most and a leaf of the other, so that with half of the data in each all hosts send
// and receive alike.
struct JobChannels {
  uint32_t rank_count = 0;
  uint32_t ring_channels = 0;
  uint32_t tree_channels = 0;
  double ring_bandwidth_gbps = 0;  // per channel: the least that any host offers
  double tree_bandwidth_gbps = 0;  // per chain, for its two trees together
  std::vector<int32_t> ring_prev;  // A rank stands at channel * rank_count + rank.
  std::vector<int32_t> ring_next;
  std::vector<TreePlace> trees;

  int32_t RingNext(uint32_t channel, uint32_t rank) const {
    return ring_next[size_t{channel} * rank_count + rank];
  }
  int32_t RingPrev(uint32_t channel, uint32_t rank) const {
    return ring_prev[size_t{channel} * rank_count + rank];
  }
  const TreePlace& Tree(uint32_t channel, uint32_t rank) const {
    return trees[size_t{channel} * rank_count + rank];
  }
};

// `offers` in the order of the hosts. There are as many channels as the host with fewest has. Each
// next host lays its channels so that they come in by the rail that the host before left by, where
// it has such a channel. InvalidUsage names the first host whose offer is not sound: ranks that are
// not those of the job, a rank on two hosts or twice in a channel, no channels.
[[nodiscard]] Result<JobChannels> JoinHosts(std::span<const HostOffer> offers);

// A host's place in one of the two trees over `hosts` hosts (`second` for the other one).
struct HostPlace {
  int32_t parent = -1;
  std::array<int32_t, 2> children{-1, -1};
};
HostPlace PlaceInTree(uint32_t host, uint32_t hosts, bool second);

}  // namespace tutti::topology
