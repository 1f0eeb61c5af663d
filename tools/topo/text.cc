#include "topo/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "topology/machine.h"

namespace tutti::tools::topo {
namespace {

using topology::CpuModel;
using topology::FormatBusId;
using topology::Graph;
using topology::kLocalBandwidth;
using topology::kNoIndex;
using topology::Link;
using topology::LinkIndex;
using topology::LinkKind;
using topology::Node;
using topology::NodeIndex;
using topology::NodeKind;
using topology::Path;
using topology::PathKind;
using topology::Paths;

class TreePrinter {
 public:
  explicit TreePrinter(const Graph& graph) : graph_(graph) {}

  std::string Print() {
    int host = -1;
    for (const NodeIndex cpu : graph_.OfKind(NodeKind::kCpu)) {
      const Node& node = graph_.node(cpu);
      if (SpansHosts(graph_) && node.host != host) Line(0, "host {}", node.host);
      host = node.host;
      PrintBelow(cpu, kNoIndex, SpansHosts(graph_) ? 1 : 0);
    }
    for (const NodeIndex nv_switch : graph_.OfKind(NodeKind::kNvSwitch)) {
      Line(0, "{}  joins {} GPUs", graph_.node(nv_switch).name,
           graph_.node(nv_switch).links.size());
    }
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void Line(size_t depth, fmt::format_string<Args...> format, Args&&... args) {
    text_.append(2 * depth, ' ');
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  // Follows the links that lead down from `index`: PCI, to ports, and to host devices.
  void PrintBelow(NodeIndex index, NodeIndex above, size_t depth) {
    double up_gbps = 0;
    for (const LinkIndex link : graph_.node(index).links) {
      if (graph_.link(link).to == above) up_gbps = graph_.link(link).bandwidth_gbps;
    }
    Line(depth, "{}", Describe(index, up_gbps));
    for (const LinkIndex link : graph_.node(index).links) {
      const Link& down = graph_.link(link);
      const NodeKind kind = graph_.node(down.to).kind;
      const bool leads_down =
          (down.kind == LinkKind::kPci && kind != NodeKind::kCpu && down.to != above) ||
          (down.kind == LinkKind::kNetwork && kind == NodeKind::kNet) ||
          (down.kind == LinkKind::kLocal && kind == NodeKind::kHostDevice);
      if (leads_down && graph_.node(index).kind != NodeKind::kGpu) {
        PrintBelow(down.to, index, depth + 1);
      }
    }
  }

  std::string Describe(NodeIndex index, double up_gbps) const {
    const Node& node = graph_.node(index);
    switch (node.kind) {
      case NodeKind::kCpu:
        return DescribeCpu(node);
      case NodeKind::kGpu:
        return DescribeGpu(node, up_gbps);
      case NodeKind::kHostDevice:
        return fmt::format("{}  rank {}", node.name, node.rank);
      case NodeKind::kNet:
        return fmt::format("NET {}  {}, {:.4g} GB/s{}", node.device, node.name,
                           node.net_bandwidth_gbps, node.gpu_direct ? ", GPUDirect" : "");
      case NodeKind::kNic:
        if (up_gbps >= kLocalBandwidth) return "NIC  at a place that is not known";
        return fmt::format("NIC {}  PCI {:.4g} GB/s", node.name, up_gbps);
      default:
        return fmt::format("PCI {}  {:.4g} GB/s", node.name, up_gbps);
    }
  }

  std::string DescribeCpu(const Node& node) const {
    std::string text = node.name;
    if (!Name(node.cpu_model).empty()) text += fmt::format("  {}", Name(node.cpu_model));
    for (const LinkIndex index : node.links) {
      const Link& link = graph_.link(index);
      if (link.kind != LinkKind::kSystem) continue;
      text += fmt::format(", {:.4g} GB/s to {}", link.bandwidth_gbps, graph_.node(link.to).name);
    }
    return text;
  }

  std::string DescribeGpu(const Node& node, double up_gbps) const {
    std::string text = fmt::format("{}  rank {}, {}", node.name, node.rank, FormatBusId(node.id));
    if (node.compute_capability > 0) text += fmt::format(", sm {}", node.compute_capability);
    text += fmt::format(", PCI {:.4g} GB/s", up_gbps);
    for (const LinkIndex index : node.links) {
      const Link& link = graph_.link(index);
      if (link.kind != LinkKind::kNvlink && link.kind != LinkKind::kC2c) continue;
      text += fmt::format(", {} {:.4g} to {}", Name(link.kind), link.bandwidth_gbps,
                          graph_.node(link.to).name);
    }
    return text + (node.gpu_direct ? ", GPUDirect" : "");
  }

  const Graph& graph_;
  std::string text_;
};

std::vector<NodeIndex> Columns(const Graph& graph) {
  std::vector<NodeIndex> columns(graph.Devices().begin(), graph.Devices().end());
  for (const NodeKind kind : {NodeKind::kNet, NodeKind::kCpu}) {
    columns.insert(columns.end(), graph.OfKind(kind).begin(), graph.OfKind(kind).end());
  }
  return columns;
}

}  // namespace

std::string_view Name(CpuModel model) {
  switch (model) {
    case CpuModel::kIntelBroadwell:
      return "Intel, Broadwell or older";
    case CpuModel::kIntelSkylake:
      return "Intel, Skylake to Ice Lake";
    case CpuModel::kIntelSapphireRapids:
      return "Intel, Sapphire Rapids";
    case CpuModel::kIntelEmeraldRapids:
      return "Intel, Emerald Rapids or newer";
    case CpuModel::kAmd:
      return "AMD";
    case CpuModel::kZhaoxin:
      return "Zhaoxin";
    case CpuModel::kZhaoxinYongfeng:
      return "Zhaoxin Yongfeng";
    case CpuModel::kArm:
      return "Arm";
    case CpuModel::kPower:
      return "POWER";
    case CpuModel::kUnknown:
      break;
  }
  return {};
}

std::string TreeText(const Graph& graph) { return TreePrinter(graph).Print(); }

std::string MatrixText(const Graph& graph, const Paths& paths) {
  const std::vector<NodeIndex> columns = Columns(graph);
  std::vector<std::vector<std::string>> cells(1, {""});
  for (const NodeIndex column : columns) cells[0].push_back(UniqueName(graph, column));
  for (const NodeIndex row : columns) {
    if (graph.node(row).kind == NodeKind::kCpu) continue;
    cells.push_back({UniqueName(graph, row)});
    for (const NodeIndex column : columns) {
      const Path& path = paths.Between(row, column);
      if (row == column) {
        cells.back().push_back("X");
      } else if (path.kind == PathKind::kDis || columns.size() > kMostWideColumns) {
        cells.back().emplace_back(Name(path.kind));
      } else {
        cells.back().push_back(fmt::format("{} {:.4g}", Name(path.kind), path.bandwidth_gbps));
      }
    }
  }
  std::vector<size_t> widths(cells[0].size());
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.erase(line.find_last_not_of(' ') + 1) + '\n';
  }
  return text;
}

std::string LegendText(const Graph& graph, const Paths& paths) {
  constexpr std::string_view kMeanings[] = {
      "the same memory",
      "NVLink or xGMI",
      "NVLink through another GPU",
      "chip to chip",
      "one PCI switch",
      "several PCI switches",
      "chip to chip to the processor, then PCI",
      "NVLink to a GPU that is near the NIC, then PCI",
      "a processor's host bridge",
      "the link between processors",
      "only a network",
      "not joined",
  };
  std::set<PathKind> kinds;
  for (const NodeIndex row : Columns(graph)) {
    for (const NodeIndex column : Columns(graph)) {
      if (row != column && graph.node(row).kind != NodeKind::kCpu) {
        kinds.insert(paths.Between(row, column).kind);
      }
    }
  }
  std::string text;
  for (const PathKind kind : kinds) {
    text += fmt::format("{}  {}\n", Name(kind), kMeanings[static_cast<size_t>(kind)]);
  }
  return text;
}

}  // namespace tutti::tools::topo
