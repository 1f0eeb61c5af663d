#pragma once

// The best way from every device, network port and NVSwitch to every other node: fewest links, then
// most bandwidth. Pure: the same graph gives the same paths.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/graph.h"

namespace tutti::topology {

// Says how far apart two nodes are. A later value is worse.
enum class PathKind : uint8_t {
  kLocal,         // LOC: the same node
  kNvlink,        // NVL: NVLink only
  kNvlinkBridge,  // NVB: NVLink through another GPU
  kC2c,           // C2C: GPU and processor on one board
  kPix,           // PIX: one PCI switch
  kPxb,           // PXB: several PCI switches
  kP2c,           // P2C: C2C to the processor, PCI from there to the NIC
  kPxn,           // PXN: NVLink to a GPU that is near the NIC, PCI from there
  kPhb,           // PHB: through a processor's PCI host bridge
  kSys,           // SYS: between processors
  kNet,           // NET: through a network
  kDis,           // DIS: not joined
};

std::string_view Name(PathKind kind);

struct Path {
  PathKind kind = PathKind::kDis;
  double bandwidth_gbps = 0;     // GB/s of its narrowest link
  std::vector<LinkIndex> links;  // They are in order; empty for kLocal and kDis.
};

// Says what NCCL_P2P_LEVEL and its like allow, and what drivers refuse.
struct PathRules {
  // The worst kind GPUs may use to reach one another directly. Not set: PXB, but SYS for one or two
  // GPUs with AMD processors, which forward such traffic well.
  std::optional<PathKind> peer_to_peer;
  PathKind gpu_direct = PathKind::kP2c;  // the worst kind between a GPU and a NIC that reads it
  // Whether NICs may read a GPU's memory, to send it. Not set: from Ampere on; before, where
  // NVLink keeps the GPU's other traffic off PCI.
  std::optional<bool> gpu_direct_read;
  bool use_pxn = true;
  bool pxn_over_c2c = true;          // also through a GPU that reaches the NIC chip to chip
  bool nvlink_bridge = true;         // NVLink through a third GPU
  bool peer_access_refused = false;  // The driver lets no GPU reach another one over PCI.
  // NCCL gives up on two GPUs of a host, and leaves them to the network, where both reach a NIC
  // faster than one another. It cuts machines in two whose processors could have joined them; here
  // it is done on demand only.
  bool prefer_network = false;
};

// Bandwidth of a node to itself, GB/s: more than any link has.
inline constexpr double kLocalBandwidth = 5000;

class Paths {
 public:
  // Empty for pairs where `from` is not a device, net, NVSwitch or processor.
  const Path& Between(NodeIndex from, NodeIndex to) const {
    const uint32_t row = row_of_[from];
    return row == kNoIndex ? kNoPath : paths_[row * row_of_.size() + to];
  }

 private:
  friend class PathFinder;
  static const Path kNoPath;
  std::vector<uint32_t> row_of_;  // per node; kNoIndex where there are no paths from it
  std::vector<Path> paths_;       // a row of as many as there are nodes, per node that has one
};

// Computes the paths between all nodes. A GPU that sends to a NIC through another GPU (PXN) still
// receives directly, so the way from the NIC to the GPU may be another one than the way back.
Paths ComputePaths(const Graph& graph, const PathRules& rules);

// Returns whether `net` writes into the memory of `gpu`, or reads from there (`read`), as far as
// the rules and the path between them allow it (GPUDirect).
bool ReachesGpuMemory(const Graph& graph, const Paths& paths, const PathRules& rules, NodeIndex gpu,
                      NodeIndex net, bool read);

// Returns the nodes of `kind` that `from` reaches with the most bandwidth, and among them those of
// the best kind of path; in the graph's order. Empty when it reaches none.
std::vector<NodeIndex> Nearest(const Graph& graph, const Paths& paths, NodeIndex from,
                               NodeKind kind);

// Returns the port that `device` sends through on `channel`: devices that share their nearest ports
// are spread over them. kNoIndex when it reaches none.
NodeIndex LocalNet(const Graph& graph, const Paths& paths, NodeIndex device, int channel);

// Returns the device that `net` serves first: one of its nearest, for which it is the local net on
// the lowest channel. kNoIndex when it is nobody's.
NodeIndex LocalDevice(const Graph& graph, const Paths& paths, NodeIndex net);

// Returns the processor nearest to `device` (fewest links); kNoIndex when it reaches none.
NodeIndex LocalCpu(const Graph& graph, const Paths& paths, NodeIndex device);

// Returns the devices that are joined with one another by paths better than NET, a group each, in
// the graph's order.
std::vector<std::vector<NodeIndex>> Domains(const Graph& graph, const Paths& paths);

}  // namespace tutti::topology
