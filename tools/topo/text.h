#pragma once

// Writes a graph and its paths as text for `tutti topo show`. Pure.

#include <cstddef>
#include <string>
#include <string_view>

#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

// Returns the processors with everything below them, a line each, indented.
std::string TreeText(const topology::Graph& graph);

// Returns a row for each device and port, with the kind of its path to each device, port and
// processor. With up to kMostWideColumns columns the text has the path's GB/s, too.
std::string MatrixText(const topology::Graph& graph, const topology::Paths& paths);
inline constexpr size_t kMostWideColumns = 24;

// Returns the kinds of paths in `paths`, each with its meaning.
std::string LegendText(const topology::Graph& graph, const topology::Paths& paths);

// Returns a name such as "Intel Skylake" or "AMD"; empty for an unknown one.
std::string_view Name(topology::CpuModel model);

}  // namespace tutti::tools::topo
