#include "gpu/channel_trees.h"

#include <algorithm>

#include "plan/ranks_by_host.h"
#include "plan/tree.h"

namespace tutti {
namespace {

// Returns the ranks of one host in the order of a channel's ring, beginning behind `head` and
// ending with `head`.
std::vector<int> ChainTo(int head, std::span<const int> host, const std::vector<int>& ring) {
  std::vector<int> chain;
  for (const int r : ring)
    if (std::find(host.begin(), host.end(), r) != host.end()) chain.push_back(r);
  const auto at = std::find(chain.begin(), chain.end(), head);
  std::rotate(chain.begin(), at + 1, chain.end());
  return chain;
}

// Returns whether a tree is mirrored. Mirroring exchanges inner hosts and leaves. A rank of the
// smallest host heads one of every `fewest` trees; half of the trees with the same head are
// mirrored.
bool IsMirrored(uint32_t tree, size_t fewest) {
  return (fewest % 2 == 0 ? tree + tree / fewest : tree) % 2 != 0;
}

// Adds to `node` the neighbours of `rank` in a chain.
void Join(const std::vector<int>& chain, int rank, TreeNode& node) {
  const auto at = std::find(chain.begin(), chain.end(), rank);
  if (at != chain.begin()) node.from.push_back(at[-1]);
  if (at + 1 != chain.end()) node.to.push_back(at[1]);
}

}  // namespace

// Makes this rank's nodes in all trees. Tree t uses the rings of channels 2t and 2t + 1.
ChannelTrees::ChannelTrees(std::span<const uint64_t> hosts, int rank,
                           const std::vector<std::vector<int>>& rings) {
  const std::vector<std::vector<int>> ranks = RanksByHost(hosts);
  const auto num_hosts = static_cast<int>(ranks.size());
  if (num_hosts < 2) return;
  int here = 0;
  while (hosts[static_cast<size_t>(ranks[static_cast<size_t>(here)][0])] !=
         hosts[static_cast<size_t>(rank)])
    ++here;
  const std::vector<int>& host = ranks[static_cast<size_t>(here)];
  size_t fewest = host.size();
  for (const std::vector<int>& of : ranks) fewest = std::min(fewest, of.size());
  for (uint32_t tree = 0; 2 * tree + 1 < rings.size(); ++tree) {
    const auto head_of = [&](int h) {
      const std::vector<int>& of = ranks[static_cast<size_t>(h)];
      return of[tree % of.size()];
    };
    const int head = head_of(here);
    TreeNode up, down;
    const uint32_t way_up = 2 * tree, way_down = way_up + 1;
    up.from_channel = up.to_channel = way_up;
    down.from_channel = down.to_channel = way_down;
    up.reads = down.writes = true;
    Join(ChainTo(head, host, rings[way_up]), rank, up);
    // The chain down begins with the head and ends behind the head.
    std::vector<int> chain = ChainTo(head, host, rings[way_down]);
    std::rotate(chain.begin(), chain.end() - 1, chain.end());
    Join(chain, rank, down);
    if (rank == head) {
      const TreeView view =
          IsMirrored(tree, fewest) ? MirroredTree(here, num_hosts) : BinaryTree(here, num_hosts);
      for (const int child : view.children) {
        if (child < 0) continue;
        up.from.push_back(head_of(child));
        down.to.push_back(head_of(child));
      }
      if (view.parent >= 0) {
        up.to.push_back(head_of(view.parent));
        down.from.push_back(head_of(view.parent));
      } else {
        // The root passes the sum down at once, by the connections of the way down.
        up.is_final = up.writes = true;
        up.to = std::move(down.to);
        up.to_channel = way_down;
        down = TreeNode();
      }
    }
    nodes_.push_back({std::move(up), std::move(down)});
  }
}

// Every link of a tree passes each slice of the tree's elements once.
kernels::Traffic CountTree(const Plan& plan, size_t count, uint32_t tree) {
  const size_t elems = ClampChunk(tree * plan.channel_elems, plan.channel_elems, count);
  const uint64_t slices = DivUp(elems, plan.slice_elems);
  return {slices, slices, elems};
}

}  // namespace tutti
