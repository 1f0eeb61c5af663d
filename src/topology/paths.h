#pragma once

// Finds the best way from every device, network port and NVSwitch to every node of the graph:
// fewest links, then most bandwidth. Pure: the same graph gives the same paths.

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
  kP2c,           // P2C: C2C to the processor, then PCI to the NIC
  kPxn,           // PXN: NVLink to a GPU near the NIC, then PCI
  kPhb,           // PHB: through a processor's PCI host bridge
  kSys,           // SYS: between processors
  kNet,           // NET: through a network
  kDis,           // DIS: not joined
};

std::string_view Name(PathKind kind);

struct Path {
  PathKind kind = PathKind::kDis;
  double bandwidth_gbps = 0;     // GB/s of its narrowest link
  std::vector<LinkIndex> links;  // in order; empty for kLocal and kDis
};

// Holds what NCCL_P2P_LEVEL and related settings allow, and what drivers refuse.
struct PathRules {
  // The worst kind by which GPUs may reach one another directly. Not set: PXB, but SYS for one or
  // two GPUs with AMD processors, which forward such traffic well.
  std::optional<PathKind> peer_to_peer;
  // the worst kind between a GPU and a NIC that reads the GPU's memory
  PathKind gpu_direct = PathKind::kP2c;
  // Whether NICs may read a GPU's memory in order to send. Not set: from Ampere on, and on older
  // GPUs where NVLink keeps the GPU's other traffic off PCI.
  std::optional<bool> gpu_direct_read;
  bool use_pxn = true;
  bool pxn_over_c2c = true;          // also through a GPU that reaches the NIC chip to chip
  bool nvlink_bridge = true;         // NVLink through a third GPU
  bool peer_access_refused = false;  // The driver lets no GPU reach another one over PCI.
  // NCCL leaves two GPUs of a host to the network where both reach a NIC faster than one another.
  // NCCL's rule cuts machines in two whose processors could have joined the GPUs, and applies here
  // only when this member is true.
  bool prefer_network = false;
};

// Bandwidth of a node to itself, GB/s: more than any link has.
inline constexpr double kLocalBandwidth = 5000;

class Paths {
 public:
  // Returns an empty path where `from` is not a device, net, NVSwitch or processor.
  const Path& Between(NodeIndex from, NodeIndex to) const {
    const uint32_t row = row_of_[from];
    return row == kNoIndex ? kNoPath : paths_[row * row_of_.size() + to];
  }

 private:
  friend class PathFinder;
  static const Path kNoPath;
  std::vector<uint32_t> row_of_;  // per node; kNoIndex for a node without paths of its own
  std::vector<Path> paths_;       // for each node with paths, a row with a path to every node
};

// Computes the paths between all nodes. A GPU that sends to a NIC through another GPU (PXN) still
// receives directly. The path from the NIC to the GPU may therefore differ from the path back.
Paths ComputePaths(const Graph& graph, const PathRules& rules);

// Returns whether the rules and the path between them let `net` write into the memory of `gpu`, or
// with `read` read from the GPU's memory (GPUDirect).
bool ReachesGpuMemory(const Graph& graph, const Paths& paths, const PathRules& rules, NodeIndex gpu,
                      NodeIndex net, bool read);

// Returns the nodes of `kind` that `from` reaches with the most bandwidth and, among equal
// bandwidths, by the best kind of path; in the graph's order. Empty when `from` reaches no node of
// the kind.
std::vector<NodeIndex> Nearest(const Graph& graph, const Paths& paths, NodeIndex from,
                               NodeKind kind);

// Returns the port through which `device` sends on `channel`: devices that share their nearest
// ports are spread over the ports. kNoIndex when `device` reaches no port.
NodeIndex LocalNet(const Graph& graph, const Paths& paths, NodeIndex device, int channel);

// Returns the device that `net` serves first: among its nearest devices, the one whose local net is
// `net` on the lowest channel. kNoIndex when `net` is no device's local net.
NodeIndex LocalDevice(const Graph& graph, const Paths& paths, NodeIndex net);

// Returns the processor nearest to `device` (fewest links); kNoIndex when `device` reaches no
// processor.
NodeIndex LocalCpu(const Graph& graph, const Paths& paths, NodeIndex device);

// Returns the groups of devices that paths better than NET join with one another, in the graph's
// order.
std::vector<std::vector<NodeIndex>> Domains(const Graph& graph, const Paths& paths);

}  // namespace tutti::topology
