#include "topology/paths.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tutti::topology {

const Path Paths::kNoPath;

std::string_view Name(PathKind kind) {
  constexpr std::string_view kNames[] = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                         "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};
  return kNames[static_cast<size_t>(kind)];
}

namespace {

bool HasNvlinkPeer(const Graph& graph, const Paths& paths, NodeIndex gpu) {
  const auto gpus = graph.OfKind(NodeKind::kGpu);
  return std::any_of(gpus.begin(), gpus.end(), [&](NodeIndex other) {
    return paths.Between(gpu, other).kind == PathKind::kNvlink;
  });
}

// Returns whether a NIC may reach the GPU's memory as far as the two devices and the rules decide,
// whatever the path. Before Ampere, reads disturb a GPU's other PCI traffic, which exists unless
// NVLink carries the traffic.
bool MayReachGpuMemory(const Graph& graph, const Paths& paths, const PathRules& rules,
                       NodeIndex gpu, NodeIndex net, bool read) {
  if (!graph.node(gpu).gpu_direct || !graph.node(net).gpu_direct) return false;
  if (!read) return true;
  if (rules.gpu_direct_read) return *rules.gpu_direct_read;
  return graph.node(gpu).compute_capability >= 80 || graph.OfKind(NodeKind::kGpu).size() <= 1 ||
         HasNvlinkPeer(graph, paths, gpu);
}

}  // namespace

// Finds all paths in steps, each of which may rest on the steps before: plain paths, then paths
// that the rules divert.
class PathFinder {
 public:
  PathFinder(const Graph& graph, const PathRules& rules) : graph_(graph), rules_(rules) {}

  Paths Find() {
    MakeRows();
    for (NodeIndex node = 0; node < graph_.nodes().size(); ++node) {
      if (paths_.row_of_[node] != kNoIndex) Search(node);
    }
    DivertPeers();
    if (rules_.prefer_network) LeaveToNetwork();
    MarkChipToChip();
    RelayToNets();
    return std::move(paths_);
  }

 private:
  struct Step {
    double bandwidth_gbps = 0;
    uint32_t hops = kNoIndex;
    PathKind kind = PathKind::kDis;
    LinkIndex via = kNoIndex;
  };

  void MakeRows() {
    uint32_t rows = 0;
    paths_.row_of_.assign(graph_.nodes().size(), kNoIndex);
    for (NodeIndex node = 0; node < graph_.nodes().size(); ++node) {
      const NodeKind kind = graph_.node(node).kind;
      if (kind == NodeKind::kPci || kind == NodeKind::kNic) continue;
      paths_.row_of_[node] = rows++;
    }
    paths_.paths_.resize(rows * graph_.nodes().size());
  }

  Path& At(NodeIndex from, NodeIndex to) {
    return paths_.paths_[paths_.row_of_[from] * paths_.row_of_.size() + to];
  }

  // Returns whether `node` forwards. GPUs do not forward, with one exception: one NVLink to another
  // GPU, for a GPU without a link of its own to the third. More hops are slower than the path
  // through PCI.
  bool Forwards(NodeIndex from, NodeIndex node, const Link& link, uint32_t hops) const {
    if (graph_.node(node).kind != NodeKind::kGpu || node == from) return true;
    return rules_.nvlink_bridge && graph_.node(from).kind == NodeKind::kGpu &&
           link.kind == LinkKind::kNvlink && graph_.node(link.to).kind == NodeKind::kGpu &&
           hops == 1;
  }

  PathKind KindOver(const Link& link, PathKind before, uint32_t hops_before) const {
    const NodeKind from = graph_.node(link.from).kind;
    const NodeKind to = graph_.node(link.to).kind;
    PathKind kind = PathKind::kLocal;
    switch (link.kind) {
      case LinkKind::kLocal:
      case LinkKind::kNetwork:  // the step from a NIC to its own port costs nothing
        break;
      case LinkKind::kNvlink:
        kind = from == NodeKind::kGpu && before == PathKind::kNvlink && hops_before == 1
                   ? PathKind::kNvlinkBridge
                   : PathKind::kNvlink;
        break;
      case LinkKind::kC2c:
        kind = PathKind::kC2c;
        break;
      case LinkKind::kPci:
        kind = PathKind::kPix;
        if (from == NodeKind::kPci && to == NodeKind::kPci) kind = PathKind::kPxb;
        if (from == NodeKind::kCpu || to == NodeKind::kCpu) kind = PathKind::kPhb;
        break;
      case LinkKind::kSystem:
        kind = PathKind::kSys;
        break;
    }
    return std::max(before, kind);
  }

  // Searches breadth first, a level at a time. Bandwidth along a path only falls, hence the widest
  // among the shortest paths to a node extends the widest path to the node before.
  void Search(NodeIndex from) {
    steps_.assign(graph_.nodes().size(), Step());
    steps_[from] = {kLocalBandwidth, 0, PathKind::kLocal, kNoIndex};
    At(from, from) = {PathKind::kLocal, kLocalBandwidth, {}};
    frontier_.assign(1, from);
    for (uint32_t hops = 1; !frontier_.empty(); ++hops) {
      next_.clear();
      for (const NodeIndex node : frontier_) Extend(from, node, hops);
      for (const NodeIndex node : next_) {
        const Step& step = steps_[node];
        const Path& before = At(from, graph_.link(step.via).from);
        Path& path = At(from, node);
        path.kind = step.kind;
        path.bandwidth_gbps = step.bandwidth_gbps;
        path.links.reserve(hops);
        path.links = before.links;
        path.links.push_back(step.via);
      }
      frontier_.swap(next_);
    }
  }

  void Extend(NodeIndex from, NodeIndex node, uint32_t hops) {
    const Step base = steps_[node];
    for (const LinkIndex index : graph_.node(node).links) {
      const Link& link = graph_.link(index);
      Step& best = steps_[link.to];
      if (best.hops < hops || !Forwards(from, node, link, base.hops)) continue;
      const double bandwidth = std::min(base.bandwidth_gbps, link.bandwidth_gbps);
      const PathKind kind = KindOver(link, base.kind, base.hops);
      if (best.hops == hops && (bandwidth < best.bandwidth_gbps ||
                                (bandwidth == best.bandwidth_gbps && kind >= best.kind))) {
        continue;
      }
      if (best.hops != hops) next_.push_back(link.to);
      best = {bandwidth, hops, kind, index};
    }
  }

  // Makes the path from `from` to `to` go by `middle`.
  void GoBy(NodeIndex from, NodeIndex middle, NodeIndex to) {
    const Path& first = At(from, middle);
    const Path& second = At(middle, to);
    if (first.kind == PathKind::kDis || second.kind == PathKind::kDis) return;
    Path path;
    const auto [better, worse] = std::minmax(first.kind, second.kind);
    path.kind = worse == PathKind::kPhb && better == PathKind::kC2c ? PathKind::kP2c : worse;
    if (graph_.node(middle).kind == NodeKind::kGpu) path.kind = PathKind::kPxn;
    path.bandwidth_gbps = std::min(first.bandwidth_gbps, second.bandwidth_gbps);
    path.links.reserve(first.links.size() + second.links.size());
    path.links = first.links;
    path.links.insert(path.links.end(), second.links.begin(), second.links.end());
    At(from, to) = std::move(path);
  }

  PathKind PeerLevel() const {
    if (rules_.peer_to_peer) return *rules_.peer_to_peer;
    const auto cpus = graph_.OfKind(NodeKind::kCpu);
    const bool amd = !cpus.empty() && graph_.node(cpus[0]).cpu_model == CpuModel::kAmd;
    return amd && graph_.OfKind(NodeKind::kGpu).size() <= 2 ? PathKind::kSys : PathKind::kPxb;
  }

  // Diverts GPUs that may not reach one another's memory through the memory of the receiver's
  // processor.
  void DivertPeers() {
    const PathKind level = PeerLevel();
    for (const NodeIndex to : graph_.OfKind(NodeKind::kGpu)) {
      const NodeIndex cpu = LocalCpu(graph_, paths_, to);
      for (const NodeIndex from : graph_.OfKind(NodeKind::kGpu)) {
        const PathKind kind = At(from, to).kind;
        const bool refused = rules_.peer_access_refused && kind > PathKind::kNvlinkBridge;
        if (kind == PathKind::kLocal || (kind <= level && !refused) || cpu == kNoIndex) continue;
        GoBy(from, cpu, to);
      }
    }
  }

  void LeaveToNetwork() {
    const auto gpus = graph_.OfKind(NodeKind::kGpu);
    std::vector<double> net_gbps(graph_.nodes().size());
    for (const NodeIndex gpu : gpus) {
      for (const NodeIndex net : graph_.OfKind(NodeKind::kNet)) {
        const Path& path = At(gpu, net);
        if (path.kind <= PathKind::kPxb)
          net_gbps[gpu] = std::max(net_gbps[gpu], path.bandwidth_gbps);
      }
    }
    for (const NodeIndex from : gpus) {
      for (const NodeIndex to : gpus) {
        Path& path = At(from, to);
        if (from != to && path.kind != PathKind::kDis && net_gbps[from] > path.bandwidth_gbps &&
            net_gbps[to] > path.bandwidth_gbps) {
          path.kind = PathKind::kNet;
        }
      }
    }
  }

  // Marks paths of GPUs that are joined to their processor chip to chip: such a GPU reaches the
  // processor's NICs as well as through a switch. Only its nearest NICs count: a GPU beside a NIC
  // is the better way to farther NICs.
  void MarkChipToChip() {
    for (const NodeIndex gpu : graph_.OfKind(NodeKind::kGpu)) {
      const NodeIndex cpu = LocalCpu(graph_, paths_, gpu);
      if (cpu == kNoIndex || At(gpu, cpu).kind != PathKind::kC2c) continue;
      for (const NodeIndex net : Nearest(graph_, paths_, gpu, NodeKind::kNet)) {
        if (At(net, cpu).kind != PathKind::kPhb) continue;
        for (Path* path : {&At(gpu, net), &At(net, gpu)}) {
          path->kind = std::min(path->kind, PathKind::kP2c);
        }
      }
    }
  }

  // Returns whether `net` reads from or writes to the memory of `gpu`, or of `relay` in place of
  // `gpu`.
  bool GpuDirect(NodeIndex gpu, NodeIndex relay, NodeIndex net, bool read) {
    return MayReachGpuMemory(graph_, paths_, rules_, gpu, net, read) &&
           At(relay, net).kind <= rules_.gpu_direct;
  }

  void RelayToNets() {
    for (const NodeIndex net : graph_.OfKind(NodeKind::kNet)) {
      const NodeIndex relay = LocalDevice(graph_, paths_, net);
      for (const NodeIndex gpu : graph_.OfKind(NodeKind::kGpu)) {
        if (rules_.use_pxn && relay != kNoIndex && relay != gpu && RelayHelps(gpu, relay, net)) {
          GoBy(gpu, relay, net);
        }
        const PathKind kind = At(gpu, net).kind;
        if (kind >= PathKind::kPhb) continue;
        if (GpuDirect(gpu, kind == PathKind::kPxn ? relay : gpu, net, false)) continue;
        const NodeIndex cpu = LocalCpu(graph_, paths_, gpu);
        if (cpu == kNoIndex) continue;
        GoBy(net, cpu, gpu);
        GoBy(gpu, cpu, net);
      }
    }
  }

  // Returns whether PXN helps: sending over NVLink to the GPU near the NIC. Only for sending: a
  // relay at one side of each connection is enough, and receivers want their data at home.
  bool RelayHelps(NodeIndex gpu, NodeIndex relay, NodeIndex net) {
    const Path& near = At(relay, net);
    const Path& own = At(gpu, net);
    return near.kind <= (rules_.pxn_over_c2c ? PathKind::kP2c : PathKind::kPxb) &&
           GpuDirect(relay, relay, net, true) && At(gpu, relay).kind <= PathKind::kNvlink &&
           graph_.node(relay).host == graph_.node(gpu).host &&
           (near.bandwidth_gbps > own.bandwidth_gbps || own.kind > PathKind::kPxn);
  }

  const Graph& graph_;
  const PathRules& rules_;
  Paths paths_;
  std::vector<Step> steps_;
  std::vector<NodeIndex> frontier_;
  std::vector<NodeIndex> next_;
};

Paths ComputePaths(const Graph& graph, const PathRules& rules) {
  return PathFinder(graph, rules).Find();
}

// The path from the NIC counts for both directions, because the path to the NIC may be a relay's.
bool ReachesGpuMemory(const Graph& graph, const Paths& paths, const PathRules& rules, NodeIndex gpu,
                      NodeIndex net, bool read) {
  return MayReachGpuMemory(graph, paths, rules, gpu, net, read) &&
         paths.Between(net, gpu).kind <= rules.gpu_direct;
}

std::vector<NodeIndex> Nearest(const Graph& graph, const Paths& paths, NodeIndex from,
                               NodeKind kind) {
  std::vector<NodeIndex> nearest;
  double bandwidth = 0;
  PathKind best = PathKind::kDis;
  for (const NodeIndex node : graph.OfKind(kind)) {
    const Path& path = paths.Between(from, node);
    if (path.kind == PathKind::kDis || path.bandwidth_gbps < bandwidth ||
        (path.bandwidth_gbps == bandwidth && path.kind > best)) {
      continue;
    }
    if (path.bandwidth_gbps > bandwidth || path.kind < best) nearest.clear();
    bandwidth = path.bandwidth_gbps;
    best = path.kind;
    nearest.push_back(node);
  }
  return nearest;
}

namespace {

// Reverses the lowest bits of `value`, as many as `count` (a power of two) numbers need, to put
// neighbours far apart.
size_t MirrorBits(size_t value, size_t count) {
  size_t mirrored = 0;
  for (size_t bit = 1, other = count >> 1; bit < count; bit <<= 1, other >>= 1) {
    if (value & bit) mirrored |= other;
  }
  return mirrored;
}

NodeKind DeviceKind(const Graph& graph) {
  return graph.OfKind(NodeKind::kGpu).empty() ? NodeKind::kHostDevice : NodeKind::kGpu;
}

}  // namespace

NodeIndex LocalNet(const Graph& graph, const Paths& paths, NodeIndex device, int channel) {
  const std::vector<NodeIndex> nets = Nearest(graph, paths, device, NodeKind::kNet);
  if (nets.empty()) return kNoIndex;
  const std::vector<NodeIndex> devices = Nearest(graph, paths, nets[0], DeviceKind(graph));
  if (devices.empty()) return kNoIndex;
  const size_t per_device = (nets.size() + devices.size() - 1) / devices.size();
  size_t net = static_cast<size_t>(std::max(0, graph.node(device).device)) % devices.size();
  if ((nets.size() & (nets.size() - 1)) == 0) net = MirrorBits(net, nets.size());
  net += static_cast<size_t>(channel) % per_device;
  return nets[net % nets.size()];
}

NodeIndex LocalDevice(const Graph& graph, const Paths& paths, NodeIndex net) {
  const std::vector<NodeIndex> devices = Nearest(graph, paths, net, DeviceKind(graph));
  // After as many channels as the graph has nets, LocalNet repeats itself.
  const int channels = static_cast<int>(graph.OfKind(NodeKind::kNet).size());
  for (int channel = 0; channel < channels; ++channel) {
    for (const NodeIndex device : devices) {
      if (LocalNet(graph, paths, device, channel) == net) return device;
    }
  }
  return kNoIndex;
}

NodeIndex LocalCpu(const Graph& graph, const Paths& paths, NodeIndex device) {
  NodeIndex nearest = kNoIndex;
  size_t hops = std::numeric_limits<size_t>::max();
  for (const NodeIndex cpu : graph.OfKind(NodeKind::kCpu)) {
    const Path& path = paths.Between(device, cpu);
    if (path.kind == PathKind::kDis || path.links.size() >= hops) continue;
    nearest = cpu;
    hops = path.links.size();
  }
  return nearest;
}

std::vector<std::vector<NodeIndex>> Domains(const Graph& graph, const Paths& paths) {
  const auto devices = graph.Devices();
  std::vector<size_t> domain(devices.size());
  std::iota(domain.begin(), domain.end(), size_t{0});
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (domain[i] == domain[j]) continue;
      if (paths.Between(devices[i], devices[j]).kind >= PathKind::kNet) continue;
      const size_t from = std::max(domain[i], domain[j]);
      const size_t to = std::min(domain[i], domain[j]);
      std::replace(domain.begin(), domain.end(), from, to);
    }
  }
  std::vector<std::vector<NodeIndex>> groups(devices.size());
  for (size_t i = 0; i < devices.size(); ++i) groups[domain[i]].push_back(devices[i]);
  std::erase_if(groups, [](const auto& group) { return group.empty(); });
  return groups;
}

}  // namespace tutti::topology
