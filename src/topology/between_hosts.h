#pragma once

// Makes the channels of the job from the channels of each host: rings joined host to host through
// the right NICs, and two trees over the hosts for each chain.
//
// Every rank calls JoinHosts with the offers of all hosts, in the same order, and comes to the same
// answer: JoinHosts is a pure function and uses whole numbers only. May be called from any thread.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "topology/channels.h"
#include "topology/graph.h"

namespace tutti::topology {

// Holds the channels of one pattern as a host offers them to other hosts: by ranks, not by the
// host's own nodes.
struct ChannelOffer {
  Pattern pattern = Pattern::kRing;
  uint32_t channels = 0;
  double bandwidth_intra_gbps = 0;  // GB/s per channel
  double bandwidth_inter_gbps = 0;
  std::vector<int32_t> ranks;     // channel after channel, each with all ranks of the host
  std::vector<int32_t> rail_in;   // per channel: number of the port of its entry, -1 for none
  std::vector<int32_t> rail_out;  // per channel: number of the port of its exit, -1 for none
};

struct HostOffer {
  uint32_t rank_count = 0;  // number of the host's ranks
  ChannelOffer ring;
  ChannelOffer tree;
};

// Returns what a host offers. InvalidArgument when a device of the channels is no rank's.
[[nodiscard]] Result<HostOffer> MakeOffer(const Graph& graph, const Channels& ring,
                                          const Channels& tree);

inline constexpr size_t kMostChildren = 3;

struct TreePlace {
  int32_t parent = -1;                                      // -1: the root
  std::array<int32_t, kMostChildren> children{-1, -1, -1};  // children that exist come first
};

// Says who is next to whom, for all ranks. Trees come in pairs: tree channels c and c +
// tree_channels / 2 use the same chain inside hosts. A host is an inner node of at most one tree of
// a pair and a leaf of the second tree, hence with half of the data in each tree all hosts send and
// receive alike.
struct JobChannels {
  uint32_t rank_count = 0;
  uint32_t ring_channels = 0;
  uint32_t tree_channels = 0;
  double ring_bandwidth_gbps = 0;  // per channel: the least offer of all hosts
  double tree_bandwidth_gbps = 0;  // per chain, for its two trees together
  std::vector<int32_t> ring_prev;  // index: channel * rank_count + rank
  std::vector<int32_t> ring_next;
  std::vector<TreePlace> trees;

  int32_t RingNext(uint32_t channel, uint32_t rank) const {
    return ring_next[size_t{channel} * rank_count + rank];
  }
  const TreePlace& Tree(uint32_t channel, uint32_t rank) const {
    return trees[size_t{channel} * rank_count + rank];
  }
};

// Joins the hosts of `offers`, in the order of the offers. The job has as many channels as the host
// with the fewest. The channels of the next host are laid such that they enter by the rail by which
// the host before is left, where the next host has such a channel. InvalidUsage names the first
// host with an unsound offer: ranks that do not belong to the job, a rank on two hosts or twice in
// a channel, no channels.
[[nodiscard]] Result<JobChannels> JoinHosts(std::span<const HostOffer> offers);

// Holds a host's place in the first or the `second` of the two trees over `hosts` hosts.
struct HostPlace {
  int32_t parent = -1;
  std::array<int32_t, 2> children{-1, -1};
};
HostPlace PlaceInTree(uint32_t host, uint32_t hosts, bool second);

}  // namespace tutti::topology
