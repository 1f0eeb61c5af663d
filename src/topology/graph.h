#pragma once

// Describes what the machine is made of, as the searches see the machine: nodes (GPUs, host
// devices, PCI switches, NVSwitches, processors, NICs) joined by links that have a bandwidth. A
// graph is a value: it is built from a Machine (machine.h), never changed afterwards, and may be
// shared by any number of threads.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::topology {

enum class NodeKind : uint8_t {
  kGpu,         // a GPU that is or may be a rank's device
  kHostDevice,  // the place of a host rank without a GPU, on its processor
  kPci,         // a PCI switch or bridge
  kNvSwitch,    // all NVSwitches that join the same GPUs
  kCpu,         // one NUMA node
  kNic,         // a network interface card
  kNet,         // a port of a NIC, or an interface; data leaves the host here
};
inline constexpr size_t kNodeKinds = 7;

// Ordered as paths get worse.
enum class LinkKind : uint8_t {
  kLocal,   // a node to itself
  kNvlink,  // NVLink, xGMI
  kC2c,     // chip to chip, between a GPU and the processor beside it
  kPci,
  kSystem,  // between processors of a host
  kNetwork,
};

// Names the processor's model as far as the bandwidth between processors depends on the model.
enum class CpuModel : uint8_t {
  kUnknown,
  kIntelBroadwell,  // and older
  kIntelSkylake,
  kIntelSapphireRapids,
  kIntelEmeraldRapids,  // and newer
  kAmd,
  kZhaoxin,
  kZhaoxinYongfeng,
  kArm,
  kPower,
};
inline bool IsIntel(CpuModel model) {
  return model >= CpuModel::kIntelBroadwell && model <= CpuModel::kIntelEmeraldRapids;
}

using NodeIndex = uint32_t;
using LinkIndex = uint32_t;
inline constexpr uint32_t kNoIndex = UINT32_MAX;

// Describes one direction of a link. Parallel links between the same two nodes are one Link with
// the sum of their bandwidths.
struct Link {
  NodeIndex from = kNoIndex;
  NodeIndex to = kNoIndex;
  LinkIndex reverse = kNoIndex;  // the link from `to` to `from`; every link has one
  LinkKind kind = LinkKind::kLocal;
  double bandwidth_gbps = 0;  // GB/s
};

struct Node {
  NodeKind kind = NodeKind::kPci;
  int host = 0;      // index of the host within the graph; 0 unless several hosts' files were fused
  uint64_t id = 0;   // bus id, NUMA number or net number; unique for a kind within a host
  int device = -1;   // GPU: CUDA ordinal ("dev" of the file); net: number of the interface
  int rank = -1;     // GPU and host device: the communicator's rank there, -1 for none
  int numa = -1;     // the NUMA node of the processor above the node
  std::string name;  // net: the interface ("mlx5_0"); otherwise a name for people
  int compute_capability = 0;     // GPU: 90 for 9.0
  bool gpu_direct = false;        // GPU: NICs may reach its memory; net: it can reach GPUs' memory
  double net_bandwidth_gbps = 0;  // net: of the port, GB/s
  double net_latency_us = 0;
  uint64_t net_guid = 0;  // the same for all ports of a NIC
  int net_port = 0;
  CpuModel cpu_model = CpuModel::kUnknown;  // CPU
  // place among its kind in the file, where the file's order differs from the graph's
  int order = 0;
  // links that leave this node: NVLink first, then down the PCI tree, then up
  std::vector<LinkIndex> links;
};

class Graph {
 public:
  std::span<const Node> nodes() const { return nodes_; }
  std::span<const Link> links() const { return links_; }
  const Node& node(NodeIndex index) const { return nodes_[index]; }
  const Link& link(LinkIndex index) const { return links_[index]; }

  // Returns the nodes of one kind, in the order of the file (GPUs and nets: by device within a
  // host).
  std::span<const NodeIndex> OfKind(NodeKind kind) const {
    return by_kind_[static_cast<size_t>(kind)];
  }

  // Returns the devices that ranks run on: GPUs, else host devices.
  std::span<const NodeIndex> Devices() const;

  // Both are for builders (graph_builder.h) and tests. AddLink adds both directions. Where the two
  // nodes already have a link of the kind, AddLink adds to its bandwidth. Returns the index of the
  // link `from` → `to`.
  NodeIndex AddNode(Node node);
  LinkIndex AddLink(NodeIndex from, NodeIndex to, LinkKind kind, double bandwidth_gbps);

 private:
  std::vector<Node> nodes_;
  std::vector<Link> links_;
  std::vector<NodeIndex> by_kind_[kNodeKinds];
};

std::string_view Name(NodeKind kind);  // "GPU", "HOST", "PCI", "NVS", "CPU", "NIC", "NET"
std::string_view Name(LinkKind kind);  // "LOC", "NVL", "C2C", "PCI", "SYS", "NET"

// Returns whether the graph has the nodes of several hosts.
bool SpansHosts(const Graph& graph);

// Returns a node's name that is unique in the graph. Where the graph spans several hosts, the name
// begins with the number of the node's host.
std::string UniqueName(const Graph& graph, NodeIndex index);

}  // namespace tutti::topology
