#pragma once

// The best way from every device, network port and NVSwitch to every other node: fewest links, then
// most bandwidth. Pure: the same graph gives the same paths.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/graph.h"

namespace tutti::topology {

// How far apart two nodes are; later is worse.
enum class PathKind : uint8_t {
  kLocal,         // LOC: the same node
  kNvlink,        // NVL: NVLink only
  kNvlinkBridge,  // NVB: NVLink through another GPU
  kC2c,           // C2C: GPU and processor on one board
  kPix,           // PIX: one PCI switch
  kPxb,           // PXB: several PCI switches
  kP2c,           // P2C: C2C to the processor, PCI from there to the card
  kPxn,           // PXN: NVLink to a GPU that is near the card, PCI from there
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

// What NCCL_P2P_LEVEL and its like allow, and what drivers refuse.
struct PathRules {
  PathKind peer_to_peer = PathKind::kPxb;  // the worst kind GPUs may use to reach one another directly
  PathKind gpu_direct = PathKind::kPxb;    // the worst kind between a GPU and a card that reads it
  bool use_pxn = true;
  bool peer_access_refused = false;  // by the driver: no GPU reaches another one's memory over PCI
};

class Paths {
 public:
  // Empty for pairs where `from` is not a device, net, NVSwitch or processor.
  const Path& Between(NodeIndex from, NodeIndex to) const;
};

Paths ComputePaths(const Graph& graph, const PathRules& rules);

}  // namespace tutti::topology
