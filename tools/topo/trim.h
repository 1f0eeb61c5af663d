#pragma once

// Reduces a machine to the part that one rank's job on this host can use: without the devices that
// only a network joins to the part. Pure; all ranks of a part compute the same part.

#include <string>
#include <vector>

#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

struct Trimmed {
  topology::Graph graph;
  std::vector<std::string> remarks;  // a sentence for each group of devices that was left out
};

// Returns the part with `rank`; the whole graph when no device has the rank. `paths` are the paths
// of `graph`. The result has other numbers for its nodes, and needs paths of its own.
Trimmed TrimToRank(const topology::Graph& graph, const topology::Paths& paths, int rank);

}  // namespace tutti::tools::topo
