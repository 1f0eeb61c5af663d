#include "topology/search_hops.h"

#include <algorithm>
#include <cmath>

namespace tutti::topology {
namespace {

// Far above any link, and low enough for sums of a thousand such numbers to stay in 64 bits.
constexpr double kMostGbps = 1e6;

// GPUs from this compute capability on answer PCI reads without slowing their own sends.
constexpr int kQuietReads = 80;

}  // namespace

Kbps ToKbps(double gbps) {
  if (!(gbps > 0)) return 0;
  return static_cast<Kbps>(std::floor(std::min(gbps, kMostGbps) * kKbpsPerGbps + 1e-3));
}

HopTable::HopTable(const Graph& graph, const Paths& paths, std::span<const NodeIndex> devices,
                   std::span<const NodeIndex> nets)
    : devices_(devices.begin(), devices.end()), nets_(nets.begin(), nets.end()) {
  for (const Link& link : graph.links()) capacities_.push_back(ToKbps(link.bandwidth_gbps));
  AddPorts(graph);
  const size_t first_port = graph.links().size();
  hops_.resize(devices_.size() * devices_.size());
  for (size_t from = 0; from < devices_.size(); ++from) {
    for (size_t to = 0; to < devices_.size(); ++to) {
      if (from == to) continue;
      const Path& path = paths.Between(devices_[from], devices_[to]);
      hops_[from * devices_.size() + to] = Flatten(graph, path, devices_[from]);
    }
  }
  for (size_t net = 0; net < nets_.size(); ++net) {
    const uint32_t port_in = static_cast<uint32_t>(first_port + 2 * ports_[net]);
    for (const NodeIndex device : devices_) {
      in_.push_back(Flatten(graph, paths.Between(nets_[net], device), nets_[net]));
      uses_.push_back({port_in, kOnce});
      ++in_.back().use_count;
      out_.push_back(Flatten(graph, paths.Between(device, nets_[net]), device));
      uses_.push_back({port_in + 1, kOnce});
      ++out_.back().use_count;
    }
  }
}

void HopTable::AddPorts(const Graph& graph) {
  for (size_t net = 0; net < nets_.size(); ++net) {
    const Node& node = graph.node(nets_[net]);
    uint32_t port = port_count_;
    for (size_t other = 0; other < net && node.net_guid != 0; ++other) {
      const Node& before = graph.node(nets_[other]);
      if (before.host == node.host && before.net_guid == node.net_guid &&
          before.net_port == node.net_port) {
        port = ports_[other];
      }
    }
    ports_.push_back(port);
    // A port with an unknown speed is limited by its links alone.
    const double gbps = node.net_bandwidth_gbps > 0 ? node.net_bandwidth_gbps : kMostGbps;
    if (port == port_count_) {
      ++port_count_;
      capacities_.insert(capacities_.end(), 2, ToKbps(gbps));
    }
  }
}

Hop HopTable::Flatten(const Graph& graph, const Path& path, NodeIndex from) {
  Hop hop{path.kind, static_cast<uint32_t>(uses_.size()), 0};
  if (path.kind >= PathKind::kNet) {
    hop.kind = PathKind::kDis;
    return hop;
  }
  const NodeKind source = graph.node(from).kind;
  bool through_intel = false;
  for (const LinkIndex index : path.links) {
    const Node& node = graph.node(graph.link(index).to);
    through_intel |= node.kind == NodeKind::kCpu && IsIntel(node.cpu_model);
  }
  const bool slowed = through_intel && path.kind == PathKind::kPhb && source == NodeKind::kGpu;
  for (const LinkIndex index : path.links) {
    const Link& link = graph.link(index);
    const bool pci = link.kind == LinkKind::kPci;
    uses_.push_back({index, pci && slowed ? kBridgeOverhead : kOnce});
    const Node& to = graph.node(link.to);
    if (pci && source != NodeKind::kGpu && to.kind == NodeKind::kGpu && to.compute_capability > 0 &&
        to.compute_capability < kQuietReads) {
      uses_.push_back({link.reverse, kReadAnswers});
    }
  }
  hop.use_count = static_cast<uint32_t>(uses_.size()) - hop.first_use;
  return hop;
}

Kbps HopTable::Most(const Hop& hop) const {
  Kbps most = ToKbps(kMostGbps);
  for (const Use& use : Uses(hop)) {
    most = std::min(most, capacities_[use.resource] * kOnce / use.load);
  }
  return most;
}

}  // namespace tutti::topology
