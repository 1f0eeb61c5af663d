#pragma once

// ChannelTrees holds the trees for AllReduces of GPUs on several hosts. Trees take few steps. They
// are double binary trees over the hosts (plan/tree.h), with a chain of ranks inside each host.
//
//   up     A chain round the host, which ends at the host's head, adds the host's ranks. The head
//          adds the sums of the heads of two child hosts and passes the sum to the parent's head.
//   down   The result goes from head to head, and from each head in a chain round its host.
//
// From tree to tree, different hosts are inner nodes and different ranks of a host are its head.
// The data of all trees together therefore load all NICs alike. A tree has two channels, one for
// each way, and a rank has two nodes in a tree. Each node is run by a block of its own
// (backend/cuda/tree_kernel.h), and data on the way up never waits for data on the way down. At the
// root the two nodes are joined into a single node.
//
// A value type, made once from facts that all ranks know.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/counting.h"
#include "plan/plan.h"

namespace tutti {

// Describes the work of a rank on one way of a tree: the rank adds the data of the ranks `from`
// and, if `reads` is set, its own elements, and passes the result to the ranks `to`.
struct TreeNode {
  std::vector<int> from, to;  // At most kMostTreeLinks each (backend/cuda/tree_args.h).
  uint32_t from_channel = 0, to_channel = 0;  // The numbers of the connections.
  bool reads = false;                         // Adds elements of the input.
  bool is_final = false;                      // Completes the reduction.
  bool writes = false;                        // Writes to the output.

  bool IsUsed() const { return writes || !to.empty(); }
};

class ChannelTrees {
 public:
  // `hosts` has a number for the host of each rank, and `rings` the order of each channel.
  // REQUIRES: each ring has every rank once.
  ChannelTrees(std::span<const uint64_t> hosts, int rank,
               const std::vector<std::vector<int>>& rings);

  // Returns the number of trees: one tree for every two channels, where ranks are on several hosts.
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()); }
  // Returns this rank's nodes in tree `tree`, on the way up and on the way down.
  std::span<const TreeNode> Nodes(uint32_t tree) const { return nodes_[tree]; }

 private:
  std::vector<std::vector<TreeNode>> nodes_;
};

// Returns the traffic of each link of a tree.
kernels::Traffic CountTree(const Plan& plan, size_t count, uint32_t tree);

}  // namespace tutti
