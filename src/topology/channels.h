#pragma once

// Defines channels: the rings and trees that use a machine's bandwidth, as the search (search.h)
// finds them. Channels are values: they are made once, compared, printed, written to a file
// (graph_xml.h), and joined host to host (between_hosts.h). May be shared by any number of threads.
//
// The load of a channel, with `in` for bandwidth_intra and `out` for bandwidth_inter:
//
//   ring, one host     d0 -in-> d1 -in-> ... dN -in-> d0
//   ring, many hosts   net_in -out-> d0 -in-> d1 ... dN -out-> net_out
//   tree, one host     d0 -in-> d1 ... dN            (a chain; data goes up it and down it)
//   tree, many hosts   the chain, and  net_in -out-> d0,  and towards net_out:
//                        tree d0 -out->,  split tree d1 -out->,  balanced tree d0 and d1 each half
//
// A tree's chain is counted one way, as NCCL counts it: each direction of a link carries half of
// the data, and a bandwidth of b here moves as much in one all-reduce as a ring's bandwidth of b.

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

// The numbers are those of NCCL's graph files.
enum class Pattern : uint8_t {
  kBalancedTree = 1,  // parent and first child at the first device, second child at the second
  kSplitTree = 2,     // parent at the first device, children at the second
  kTree = 3,          // parent and children at the first device
  kRing = 4,
};

std::string_view Name(Pattern pattern);  // "ring", "tree", "balanced tree", "split tree"

struct Channel {
  std::vector<NodeIndex> devices;  // in order
  NodeIndex net_in = kNoIndex;     // Between hosts: the ports by which data come in and leave.
  NodeIndex net_out = kNoIndex;

  friend bool operator==(const Channel&, const Channel&) = default;
};

struct Channels {
  Pattern pattern = Pattern::kRing;
  bool inter_host = false;
  double bandwidth_intra_gbps = 0;  // GB/s of each channel
  double bandwidth_inter_gbps = 0;
  PathKind kind_intra = PathKind::kLocal;  // the worst kind that a channel uses
  PathKind kind_inter = PathKind::kLocal;
  bool same_channels = true;  // All channels have the same order and the same port.
  // Says how rings leave a host. 0: by the NIC of their entry; 1: by any NIC; 2: by another NIC,
  // paired with a ring of the opposite direction, to keep data on its rail.
  int cross_nic = 0;
  std::vector<Channel> channels;
  double bound_gbps = 0;   // No set of channels of these kinds has more in all.
  uint64_t steps = 0;      // number of the search's steps
  bool exhausted = false;  // The search ran out of steps; better channels may exist.

  double TotalGbps() const {
    return static_cast<double>(channels.size()) *
           (inter_host ? bandwidth_inter_gbps : bandwidth_intra_gbps);
  }
};

// Checks that every channel is a ring or a chain over all of `devices`, by paths that are no worse
// than the kinds say, and whether no link of the machine carries more than it has. The sentence
// names the first channel or link that is wrong.
[[nodiscard]] Status CheckChannels(const Graph& graph, const Paths& paths,
                                   std::span<const NodeIndex> devices, const Channels& channels);

}  // namespace tutti::topology
