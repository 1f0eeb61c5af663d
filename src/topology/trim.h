#pragma once

// The part of a machine that one rank's job on this host can use: without the devices that nothing
// but a network joins to it. Pure; all ranks of a part compute the same one.

#include <string>
#include <vector>

#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

struct Trimmed {
  Graph graph;
  std::vector<std::string> remarks;  // Each says in a sentence what was left out.
};

// Returns the part with `rank`; the whole graph when no device has that rank. `paths` are those of
// `graph`, and are not those of the result, whose nodes have other numbers.
Trimmed TrimToRank(const Graph& graph, const Paths& paths, int rank);

}  // namespace tutti::topology
