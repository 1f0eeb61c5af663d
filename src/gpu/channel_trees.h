#pragma once

// The trees by which AllReduces of GPUs on several hosts take few steps: double binary trees over
// the hosts (plan/tree.h), and inside each host a chain of its ranks.
//
//   up     a chain round the host, which ends at its head, adds the host's ranks; the head adds
//          what comes from the heads of two other hosts and passes the sum to a third one's
//   down   the result goes from head to head, and from each head in a chain round its host
//
// Trees take turns in which host is inner, and in which rank of a host is its head, and these turns
// differ, so that the data of all trees together load all NICs alike. A tree has two channels, one
// for each way, and so a rank has two nodes in it, each of which a block of its own runs
// (backend/cuda/tree_kernel.h): what goes up never waits for what comes down. At the root the two
// are one.
//
// Values: made once, from what all ranks know.

#include <cstdint>
#include <span>
#include <vector>

namespace tutti {

// What one rank does in one way of a tree: it adds what comes from some ranks and, where it reads,
// its own elements, and passes the result to others.
struct TreeNode {
  std::vector<int> from, to;  // At most kMostTreeLinks each (backend/cuda/tree_args.h).
  uint32_t from_channel = 0, to_channel = 0;  // They number the connections.
  bool reads = false;                         // It takes the input's elements.
  bool is_final = false;                      // It completes the reduction.
  bool writes = false;                        // It writes to the output.

  bool IsUsed() const { return writes || !to.empty(); }
};

class ChannelTrees {
 public:
  // `hosts` has a number for the host of each rank, `rings` the order of each channel. REQUIRES:
  // each ring has every rank once.
  ChannelTrees(std::span<const uint64_t> hosts, int rank,
               const std::vector<std::vector<int>>& rings);

  // Returns how many trees there are: one for every two channels, where there are several hosts.
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  // Returns this rank's nodes in tree `tree`, on the way up and on the way down.
  std::span<const TreeNode> Nodes(uint32_t tree) const { return nodes_[tree]; }

 private:
  std::vector<std::vector<TreeNode>> nodes_;
};

}  // namespace tutti
