#include "topology/graph.h"

#include <fmt/format.h>

#include <utility>

namespace tutti::topology {

std::span<const NodeIndex> Graph::Devices() const {
  const auto gpus = OfKind(NodeKind::kGpu);
  return gpus.empty() ? OfKind(NodeKind::kHostDevice) : gpus;
}

NodeIndex Graph::AddNode(Node node) {
  const NodeIndex index = static_cast<NodeIndex>(nodes_.size());
  by_kind_[static_cast<size_t>(node.kind)].push_back(index);
  node.links.clear();
  nodes_.push_back(std::move(node));
  return index;
}

LinkIndex Graph::AddLink(NodeIndex from, NodeIndex to, LinkKind kind, double bandwidth_gbps) {
  for (const LinkIndex index : nodes_[from].links) {
    Link& link = links_[index];
    if (link.to != to || link.kind != kind) continue;
    link.bandwidth_gbps += bandwidth_gbps;
    links_[link.reverse].bandwidth_gbps += bandwidth_gbps;
    return index;
  }
  const LinkIndex forth = static_cast<LinkIndex>(links_.size());
  const LinkIndex back = forth + 1;
  links_.push_back({from, to, back, kind, bandwidth_gbps});
  links_.push_back({to, from, forth, kind, bandwidth_gbps});
  nodes_[from].links.push_back(forth);
  nodes_[to].links.push_back(back);
  return forth;
}

std::string_view Name(NodeKind kind) {
  constexpr std::string_view kNames[] = {"GPU", "HOST", "PCI", "NVS", "CPU", "NIC", "NET"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view Name(LinkKind kind) {
  constexpr std::string_view kNames[] = {"LOC", "NVL", "C2C", "PCI", "SYS", "NET"};
  return kNames[static_cast<size_t>(kind)];
}

bool SpansHosts(const Graph& graph) {
  const auto cpus = graph.OfKind(NodeKind::kCpu);
  return !cpus.empty() && graph.node(cpus.back()).host > 0;
}

std::string UniqueName(const Graph& graph, NodeIndex index) {
  const Node& node = graph.node(index);
  const std::string name =
      node.kind == NodeKind::kNet ? fmt::format("NET {}", node.device) : node.name;
  return SpansHosts(graph) ? fmt::format("{}/{}", node.host, name) : name;
}

}  // namespace tutti::topology
