#pragma once

// A graph and its paths in words: what `tutti topo show` prints. Pure.

#include <string>

#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::topology {

// Returns the processors with what hangs below them, a line each, indented.
std::string TreeText(const Graph& graph);

// Returns a row for each device and port, with the kind of its path to each device, port and
// processor, and the path's GB/s where there is room for it (up to kMostWideColumns columns).
std::string MatrixText(const Graph& graph, const Paths& paths);
inline constexpr size_t kMostWideColumns = 24;

// Returns the kinds of paths that `paths` has, each with what it means.
std::string LegendText(const Graph& graph, const Paths& paths);

// Returns a name such as "Intel Skylake" or "AMD"; empty for an unknown one.
std::string_view Name(CpuModel model);

// Returns a GPU's, port's or other node's name that is unique in the graph: with its host where
// there are several.
std::string UniqueName(const Graph& graph, NodeIndex node);

}  // namespace tutti::topology
