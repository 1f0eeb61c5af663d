#include "topo/trim.h"

#include <fmt/format.h>

#include <algorithm>

#include "topology/graph_builder.h"

namespace tutti::tools::topo {

using topology::Graph;
using topology::NodeIndex;

Trimmed TrimToRank(const Graph& graph, const topology::Paths& paths, int rank) {
  const auto has_rank = [&](const std::vector<NodeIndex>& part) {
    return std::any_of(part.begin(), part.end(),
                       [&](NodeIndex device) { return graph.node(device).rank == rank; });
  };
  const std::vector<std::vector<NodeIndex>> parts = Domains(graph, paths);
  const auto own = std::find_if(parts.begin(), parts.end(), has_rank);
  if (parts.size() <= 1 || own == parts.end()) return {graph, {}};
  Trimmed trimmed;
  for (const std::vector<NodeIndex>& part : parts) {
    if (&part == &*own) continue;
    std::string names;
    for (const NodeIndex device : part) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", UniqueName(graph, device));
    }
    trimmed.remarks.push_back(fmt::format(
        "Nothing but a network joins {} to rank {}; they count as another host's.", names, rank));
  }
  std::vector<bool> keep;
  for (const NodeIndex device : graph.Devices()) {
    keep.push_back(std::find(own->begin(), own->end(), device) != own->end());
  }
  trimmed.graph = WithoutDevices(graph, keep);
  return trimmed;
}

}  // namespace tutti::tools::topo
