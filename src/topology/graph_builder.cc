#include "topology/graph_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "topology/bandwidth.h"
#include "topology/paths.h"

namespace tutti::topology {
namespace {

// Returns the generation of a PCI switch of Broadcom, for its upper level (`level` 0) or its lower
// level; 0 for all other devices. Such a switch shows itself as two levels of bridges though it is
// one box in which every port reaches every port at full speed. Ids as in NCCL's topo.cc.
int BroadcomGeneration(const PciFact& pci, uint32_t level) {
  if (pci.vendor != 0x1000) return 0;
  if (pci.device == 0xc010 && pci.subsystem_vendor == 0x1000 && pci.subsystem_device >> 12 == 0xa) {
    return 4;
  }
  if (pci.device == 0xc030 && pci.subsystem_vendor == 0x1000 &&
      pci.subsystem_device >> 12 == level) {
    return 5;
  }
  return 0;
}

bool IsSwitch(const PciFact& pci) {
  const uint32_t base = pci.device_class >> 16;
  return pci.gpus.empty() && pci.nics.empty() && !IsGpuClass(pci.device_class) && base != 0x02 &&
         pci.device_class != kClassNvSwitch && pci.device_class != kClassNvlinkBridge;
}

// Merges the lower bridges of one box into the upper bridge. Bridges below the box begin a box of
// their own.
void FlattenSwitches(std::vector<PciFact>& devices) {
  for (PciFact& pci : devices) {
    const int generation = BroadcomGeneration(pci, 0);
    if (generation != 0) {
      std::vector<PciFact> children;
      for (PciFact& child : pci.children) {
        if (IsSwitch(child) && BroadcomGeneration(child, 1) == generation) {
          std::move(child.children.begin(), child.children.end(), std::back_inserter(children));
        } else {
          children.push_back(std::move(child));
        }
      }
      pci.children = std::move(children);
    }
    FlattenSwitches(pci.children);
  }
}

struct Counts {
  size_t nodes = 0;
  size_t cpus_of_host = 0;  // of the host with the most
  size_t devices = 0;
  size_t nets = 0;
  bool ranks = false;
};

Counts Count(const Machine& machine) {
  Counts counts;
  std::map<uint64_t, size_t> cpus;
  const auto count_nets = [&](const std::vector<NicFact>& nics) {
    for (const NicFact& nic : nics) counts.nets += nic.nets.size();
    counts.nodes += nics.size();
  };
  for (const CpuFact& cpu : machine.cpus) {
    counts.nodes += 1;
    counts.cpus_of_host = std::max(counts.cpus_of_host, ++cpus[cpu.host_hash.value_or(0)]);
    counts.devices += cpu.host_devices.size();
    for (const HostDeviceFact& device : cpu.host_devices)
      counts.ranks = counts.ranks || device.rank >= 0;
    count_nets(cpu.nics);
    VisitPci(cpu, cpu.pci, [&](const CpuFact&, const PciFact& pci) {
      counts.nodes += 1;
      counts.devices += pci.gpus.size();
      count_nets(pci.nics);
      for (const GpuFact& gpu : pci.gpus) counts.ranks = counts.ranks || gpu.rank >= 0;
    });
  }
  counts.nodes += counts.devices + counts.nets;
  return counts;
}

class GraphBuilder {
 public:
  GraphBuilder(const Machine& machine, bool have_ranks)
      : machine_(machine), have_ranks_(have_ranks) {
    built_.remarks = machine.guesses;
  }

  BuiltGraph Build() {
    for (const CpuFact& cpu : machine_.cpus) AddCpu(cpu);
    AddGpus();
    AddNets();
    LinkGpus();
    LinkChipToChip();
    LinkNets();
    for (const Hang& hang : hangs_) graph_.AddLink(hang.device, hang.parent, hang.kind, hang.gbps);
    LinkSwitches();
    LinkCpus();
    built_.graph = std::move(graph_);
    return std::move(built_);
  }

 private:
  // Something below a switch or processor. Hangs are linked in their order: everything below a
  // switch before the switch, for the links of every node to lead down before they lead up.
  struct Hang {
    NodeIndex device;
    NodeIndex parent;
    LinkKind kind;
    double gbps;
  };
  struct Gpu {
    const GpuFact* fact;
    BusId bus_id;
    Node node;
    NodeIndex index = kNoIndex;
    NodeIndex cpu = kNoIndex;
    size_t hang = 0;  // index into hangs_
  };
  struct Net {
    const NetFact* fact;
    NodeIndex nic;
    Node node;
    NodeIndex index = kNoIndex;
  };

  template <typename... Args>
  void Remark(fmt::format_string<Args...> format, Args&&... args) {
    constexpr size_t kMostRemarks = 100;
    if (built_.remarks.size() >= kMostRemarks) return;
    built_.remarks.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void AddCpu(const CpuFact& cpu) {
    const uint64_t hash = cpu.host_hash.value_or(0);
    if (hosts_.emplace(hash, static_cast<int>(hosts_.size())).second) {
      next_host_device_ = 0;
      next_nic_ = 0;
    }
    host_ = hosts_[hash];
    Node node;
    node.kind = NodeKind::kCpu;
    node.host = host_;
    node.id = static_cast<uint64_t>(static_cast<int64_t>(cpu.numa));
    node.numa = cpu.numa;
    node.name = cpu.numa < 0 ? "CPU" : fmt::format("CPU {}", cpu.numa);
    node.cpu_model = ModelOf(cpu);
    node.order = cpu.order;
    if (node.cpu_model == CpuModel::kUnknown && machine_.cpus.size() > 1) {
      Remark(
          "The links of {} to other processors count as unlimited, because its kind (arch \"{}\", "
          "vendor \"{}\") is not known.",
          node.name, cpu.arch, cpu.vendor);
    }
    cpu_ = graph_.AddNode(node);
    numa_ = cpu.numa;
    for (const HostDeviceFact& device : cpu.host_devices) AddHostDevice(device);
    for (const NicFact& nic : cpu.nics) {
      const NodeIndex index = AddNic(next_nic_++, "NIC");
      AddPorts(nic, index);
      hangs_.push_back({index, cpu_, LinkKind::kPci, kLocalBandwidth});
    }
    for (const PciFact& pci : cpu.pci) AddPci(pci, cpu_);
  }

  void AddHostDevice(const HostDeviceFact& fact) {
    if (have_ranks_ && fact.rank < 0) return;
    Node node;
    node.kind = NodeKind::kHostDevice;
    node.host = host_;
    node.id = next_host_device_++;
    node.device = fact.dev < 0 ? static_cast<int>(node.id) : fact.dev;
    node.rank = have_ranks_ ? fact.rank : next_rank_++;
    node.numa = numa_;
    node.name = fmt::format("HOST {}", node.device);
    const NodeIndex index = graph_.AddNode(std::move(node));
    hangs_.push_back({index, cpu_, LinkKind::kLocal, kLocalBandwidth});
  }

  NodeIndex AddNic(uint64_t id, std::string name) {
    Node node;
    node.kind = NodeKind::kNic;
    node.host = host_;
    node.id = id;
    node.numa = numa_;
    node.name = std::move(name);
    return graph_.AddNode(std::move(node));
  }

  void AddPorts(const NicFact& nic, NodeIndex index) {
    for (const NetFact& fact : nic.nets) {
      if (!fact.usable) continue;
      if (fact.dev < 0) {
        Remark("The port {} has no number and is passed over.", fact.name);
        continue;
      }
      if (fact.speed_mbps <= 0) {
        Remark("The speed of {} is not known; 10 Gbit/s are taken.", fact.name);
      }
      Node node;
      node.kind = NodeKind::kNet;
      node.host = host_;
      node.id = static_cast<uint64_t>(fact.dev);
      node.device = fact.dev;
      node.numa = numa_;
      node.name = fact.name;
      node.gpu_direct = fact.gdr == 1;
      node.net_bandwidth_gbps = NetBandwidth(fact.speed_mbps);
      node.net_latency_us = fact.latency_us;
      node.net_guid = fact.guid;
      node.net_port = fact.port;
      node.order = fact.order;
      nets_.push_back({&fact, index, std::move(node)});
    }
  }

  void AddPci(const PciFact& pci, NodeIndex parent) {
    const double gbps = PciBandwidth(pci.link_speed, pci.link_width);
    if (!pci.gpus.empty()) {
      NoteSpeed(pci);
      for (const GpuFact& gpu : pci.gpus) AddGpu(gpu, pci.bus_id, parent, gbps);
    } else if (!pci.nics.empty()) {
      NoteSpeed(pci);
      AddNicOf(pci, parent, gbps);
    } else if (IsSwitch(pci)) {
      if (!pci.children.empty()) NoteSpeed(pci);
      Node node;
      node.kind = NodeKind::kPci;
      node.host = host_;
      node.id = pci.bus_id;
      node.numa = numa_;
      node.name = FormatBusId(pci.bus_id);
      const NodeIndex index = graph_.AddNode(std::move(node));
      switches_[{host_, pci.bus_id}] = index;
      for (const BusId peer : pci.peers) peers_.insert({host_, pci.bus_id, peer});
      for (const PciFact& child : pci.children) AddPci(child, index);
      hangs_.push_back({index, parent, LinkKind::kPci, gbps});
    }
  }

  void NoteSpeed(const PciFact& pci) {
    if (!KnowsPciSpeed(pci.link_speed)) {
      Remark("The speed of the PCI link of {} is not known; 8 GT/s are taken.",
             FormatBusId(pci.bus_id));
    }
    if (pci.link_width == 0) {
      Remark("The width of the PCI link of {} is not known; 16 lanes are taken.",
             FormatBusId(pci.bus_id));
    }
  }

  void AddGpu(const GpuFact& fact, BusId bus_id, NodeIndex parent, double gbps) {
    if (have_ranks_ && fact.rank < 0) return;
    Node node;
    node.kind = NodeKind::kGpu;
    node.host = host_;
    node.id = bus_id;
    node.device = fact.dev;
    node.rank = fact.rank;
    node.numa = numa_;
    node.compute_capability = fact.gcn.empty() ? std::max(0, fact.sm) : 0;
    node.gpu_direct = fact.gdr == 1;
    node.order = fact.order;
    if (fact.sm < 0 && !fact.nvlinks.empty()) {
      Remark("The generation of the GPU at {} is not known; its NVLinks count as those of an A100.",
             FormatBusId(bus_id));
    }
    hangs_.push_back({kNoIndex, parent, LinkKind::kPci, gbps});
    gpus_.push_back({&fact, bus_id, std::move(node), kNoIndex, cpu_, hangs_.size() - 1});
  }

  // Adds the NIC of a PCI device. Functions of one NIC share its PCI link, and are one node.
  void AddNicOf(const PciFact& pci, NodeIndex parent, double gbps) {
    const auto [nic, added] = nic_at_.emplace(std::make_pair(host_, pci.bus_id >> 4), kNoIndex);
    if (added) {
      nic->second = AddNic(pci.bus_id, FormatBusId(pci.bus_id));
      hangs_.push_back({nic->second, parent, LinkKind::kPci, gbps});
    }
    for (const NicFact& fact : pci.nics) AddPorts(fact, nic->second);
  }

  void AddGpus() {
    std::stable_sort(gpus_.begin(), gpus_.end(), [](const Gpu& a, const Gpu& b) {
      return std::make_tuple(a.node.host, a.node.device, a.bus_id) <
             std::make_tuple(b.node.host, b.node.device, b.bus_id);
    });
    int device = 0;
    int host = -1;
    for (Gpu& gpu : gpus_) {
      if (gpu.node.host != host) device = 0;
      host = gpu.node.host;
      if (gpu.node.device < 0) gpu.node.device = device;
      device = gpu.node.device + 1;
      gpu.node.name = fmt::format("GPU {}", gpu.node.device);
      if (!have_ranks_) gpu.node.rank = next_rank_++;
      gpu.index = graph_.AddNode(gpu.node);
      hangs_[gpu.hang].device = gpu.index;
      // Where several ranks share a GPU, the first rank has the GPU's links.
      gpu_at_.emplace(std::make_pair(gpu.node.host, gpu.bus_id), &gpu);
    }
  }

  void AddNets() {
    std::stable_sort(nets_.begin(), nets_.end(), [](const Net& a, const Net& b) {
      return std::make_pair(a.node.host, a.node.device) <
             std::make_pair(b.node.host, b.node.device);
    });
    for (Net& net : nets_) net.index = graph_.AddNode(net.node);
  }

  void LinkGpus() {
    struct Pair {
      double forth = 0;
      double back = 0;
    };
    std::map<std::pair<NodeIndex, NodeIndex>, Pair> pairs;
    std::vector<std::pair<NodeIndex, double>> to_switch;
    for (const Gpu& gpu : gpus_) {
      if (gpu_at_[{gpu.node.host, gpu.bus_id}] != &gpu) continue;
      double switched = 0;
      for (const NvlinkFact& link : gpu.fact->nvlinks) {
        const double gbps = link.count * NvlinkBandwidth(*gpu.fact);
        if (gbps <= 0) continue;
        if (link.target_class == kClassNvlinkBridge) {
          graph_.AddLink(gpu.index, gpu.cpu, LinkKind::kNvlink, gbps);
        } else if (!IsGpuClass(link.target_class)) {
          switched += gbps;
        } else {
          const auto target = gpu_at_.find({gpu.node.host, link.target});
          if (target == gpu_at_.end() || target->second == &gpu) continue;
          const NodeIndex other = target->second->index;
          Pair& pair = pairs[std::minmax(gpu.index, other)];
          (gpu.index < other ? pair.forth : pair.back) += gbps;
        }
      }
      if (switched > 0) to_switch.emplace_back(gpu.index, switched);
    }
    std::vector<std::tuple<double, NodeIndex, NodeIndex>> links;
    for (const auto& [ends, pair] : pairs) {
      if (pair.forth != pair.back) {
        Remark("{} and {} disagree about the NVLinks between them; the larger number is taken.",
               graph_.node(ends.first).name, graph_.node(ends.second).name);
      }
      links.emplace_back(-std::max(pair.forth, pair.back), ends.first, ends.second);
    }
    std::sort(links.begin(), links.end());  // the widest first
    for (const auto& [gbps, a, b] : links) graph_.AddLink(a, b, LinkKind::kNvlink, -gbps);
    LinkNvSwitch(to_switch);
  }

  void LinkNvSwitch(const std::vector<std::pair<NodeIndex, double>>& gpus) {
    if (gpus.empty()) return;
    Node node;
    node.kind = NodeKind::kNvSwitch;
    node.name = "NVSwitch";
    const NodeIndex nv_switch = graph_.AddNode(std::move(node));
    for (const auto& [gpu, gbps] : gpus) graph_.AddLink(gpu, nv_switch, LinkKind::kNvlink, gbps);
  }

  void LinkChipToChip() {
    for (const Gpu& gpu : gpus_) {
      if (gpu_at_[{gpu.node.host, gpu.bus_id}] != &gpu) continue;
      double gbps = 0;
      for (const C2cFact& c2c : gpu.fact->c2c) gbps += c2c.count * (c2c.bandwidth_mbs / 1000.0);
      if (gbps > 0) graph_.AddLink(gpu.index, gpu.cpu, LinkKind::kC2c, gbps);
    }
  }

  // Links each port with its NIC. A second port of the same number stays in the graph without a
  // link, unreachable.
  void LinkNets() {
    std::set<std::pair<int, int>> seen;
    for (const Net& net : nets_) {
      if (!seen.emplace(net.node.host, net.node.device).second) {
        Remark("There is a second port with the number {} ({}); only the first one is used.",
               net.node.device, net.node.name);
        continue;
      }
      graph_.AddLink(net.nic, net.index, LinkKind::kNetwork, net.node.net_bandwidth_gbps);
    }
  }

  void LinkSwitches() {
    std::set<std::pair<NodeIndex, NodeIndex>> done;
    for (const auto& [host, from, to] : peers_) {
      const auto a = switches_.find({host, from});
      const auto b = switches_.find({host, to});
      if (a == switches_.end() || b == switches_.end() || a->second == b->second) continue;
      if (!done.insert(std::minmax(a->second, b->second)).second) continue;
      graph_.AddLink(a->second, b->second, LinkKind::kLocal, kLocalBandwidth);
    }
  }

  void LinkCpus() {
    const auto cpus = graph_.OfKind(NodeKind::kCpu);
    for (size_t i = 0; i < cpus.size(); ++i) {
      for (size_t j = i + 1; j < cpus.size(); ++j) {
        const Node& a = graph_.node(cpus[i]);
        const Node& b = graph_.node(cpus[j]);
        if (a.host != b.host) continue;
        graph_.AddLink(cpus[i], cpus[j], LinkKind::kSystem,
                       std::min(CpuBandwidth(a.cpu_model), CpuBandwidth(b.cpu_model)));
      }
    }
  }

  const Machine& machine_;
  const bool have_ranks_;
  Graph graph_;
  BuiltGraph built_;
  std::vector<Hang> hangs_;
  std::vector<Gpu> gpus_;
  std::vector<Net> nets_;
  std::map<uint64_t, int> hosts_;
  std::map<std::pair<int, BusId>, NodeIndex> switches_;
  std::map<std::pair<int, BusId>, NodeIndex> nic_at_;
  std::map<std::pair<int, BusId>, const Gpu*> gpu_at_;
  std::set<std::tuple<int, BusId, BusId>> peers_;
  int host_ = 0;  // host of the processor that is being added; cpu_ and numa_ belong to it too
  NodeIndex cpu_ = kNoIndex;
  int numa_ = -1;
  uint64_t next_host_device_ = 0;  // within the host
  uint64_t next_nic_ = 0;          // number for the next NIC without an address, within the host
  int next_rank_ = 0;
};

}  // namespace

Result<BuiltGraph> BuildGraph(Machine machine) {
  const Counts counts = Count(machine);
  if (counts.devices > kMostDevices || counts.nets > kMostNets ||
      counts.cpus_of_host > kMostNumaNodes || counts.nodes > kMostGraphNodes) {
    return InvalidUsage(
        "a machine of {} devices of ranks, {} network ports, {} NUMA nodes in one host and {} "
        "nodes in all is too large; at most {}, {}, {} and {} were expected",
        counts.devices, counts.nets, counts.cpus_of_host, counts.nodes, kMostDevices, kMostNets,
        kMostNumaNodes, kMostGraphNodes);
  }
  const size_t rows = counts.devices + counts.nets + machine.cpus.size() + 1;
  if (rows * counts.nodes > kMostPaths) {
    return InvalidUsage(
        "a machine of {} nodes with {} ends of paths is too large; at most {} paths "
        "were expected",
        counts.nodes, rows, kMostPaths);
  }
  NumberMachine(machine);
  for (CpuFact& cpu : machine.cpus) FlattenSwitches(cpu.pci);
  SortMachine(machine);
  return GraphBuilder(machine, counts.ranks).Build();
}

Graph WithoutDevices(const Graph& graph, const std::vector<bool>& keep) {
  const auto devices = graph.Devices();
  std::vector<bool> gone(graph.nodes().size());
  for (size_t i = 0; i < devices.size(); ++i) gone[devices[i]] = !keep[i];
  Graph rest;
  std::vector<NodeIndex> moved(graph.nodes().size(), kNoIndex);
  for (NodeIndex node = 0; node < graph.nodes().size(); ++node) {
    if (!gone[node]) moved[node] = rest.AddNode(graph.node(node));
  }
  // Links are numbered in the order in which they were added, and stand in the same order at each
  // node.
  for (const Link& link : graph.links()) {
    if (gone[link.from] || gone[link.to] || link.reverse < graph.link(link.reverse).reverse) {
      continue;
    }
    rest.AddLink(moved[link.from], moved[link.to], link.kind, link.bandwidth_gbps);
  }
  return rest;
}

}  // namespace tutti::topology
