#pragma once

// Says what one hop of a channel takes from the machine. A HopTable is the search's view of graph
// and paths, with every path flattened into the links that the path loads. For the search and
// `tutti topo`. Immutable after construction.
//
// Bandwidths are whole numbers (kB/s): the search gives back exactly what it took, and every rank
// computes the same.

#include <cstdint>
#include <span>
#include <vector>

#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

using Kbps = int64_t;  // kilobytes per second: 1 GB/s is a million
inline constexpr double kKbpsPerGbps = 1e6;
Kbps ToKbps(double gbps);
inline double ToGbps(Kbps kbps) { return static_cast<double>(kbps) / kKbpsPerGbps; }

// Part of a hop: a link (or a port of a NIC), and how much of it a hop of bandwidth 1 takes, in
// fortieths. 40 is the whole bandwidth; 48 adds the fifth that Intel's host bridges cost between
// PCI devices; 5 is the eighth that the answers to PCI reads take of the opposite direction on GPUs
// before sm_80.
struct Use {
  uint32_t resource = 0;
  uint32_t load = 40;
};
inline constexpr uint32_t kOnce = 40;
inline constexpr uint32_t kBridgeOverhead = 48;
inline constexpr uint32_t kReadAnswers = 5;
// A channel's bandwidth is a multiple of kGrain. All loads of the channel, and their halves, are
// then whole numbers.
inline constexpr Kbps kGrain = 80;
inline Kbps Cost(Kbps bandwidth, uint32_t load) { return bandwidth * load / kOnce; }

struct Hop {
  PathKind kind = PathKind::kDis;
  uint32_t first_use = 0;
  uint32_t use_count = 0;
};

class HopTable {
 public:
  HopTable(const Graph& graph, const Paths& paths, std::span<const NodeIndex> devices,
           std::span<const NodeIndex> nets);

  size_t device_count() const { return devices_.size(); }
  size_t net_count() const { return nets_.size(); }
  std::span<const NodeIndex> devices() const { return devices_; }
  std::span<const NodeIndex> nets() const { return nets_; }

  const Hop& Between(size_t from, size_t to) const { return hops_[from * devices_.size() + to]; }
  const Hop& In(size_t net, size_t device) const { return in_[net * devices_.size() + device]; }
  const Hop& Out(size_t device, size_t net) const { return out_[net * devices_.size() + device]; }
  std::span<const Use> Uses(const Hop& hop) const {
    return std::span(uses_).subspan(hop.first_use, hop.use_count);
  }

  // Returns the bandwidth of each resource: the links of the graph, then the two directions of each
  // port.
  std::span<const Kbps> capacities() const { return capacities_; }

  // Returns the number of the port of `net`. Nets of the same port of the same NIC have the same
  // number.
  uint32_t port(size_t net) const { return ports_[net]; }
  uint32_t port_count() const { return port_count_; }

  // Returns how much `hop` can carry when nothing else runs.
  Kbps Most(const Hop& hop) const;

 private:
  Hop Flatten(const Graph& graph, const Path& path, NodeIndex from);
  void AddPorts(const Graph& graph);

  std::vector<NodeIndex> devices_;
  std::vector<NodeIndex> nets_;
  std::vector<uint32_t> ports_;
  uint32_t port_count_ = 0;
  std::vector<Hop> hops_;
  std::vector<Hop> in_;
  std::vector<Hop> out_;
  std::vector<Use> uses_;
  std::vector<Kbps> capacities_;
};

}  // namespace tutti::topology
