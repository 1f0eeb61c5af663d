#pragma once

// A graph and its paths in words: what `tutti topo show` prints. Pure.

#include <cstddef>
#include <string>
#include <string_view>

#include "topology/graph.h"
#include "topology/paths.h"

namespace tutti::tools::topo {

// Returns the processors with what hangs below them, a line each, indented.
std::string TreeText(const topology::Graph& graph);

// Returns a row for each device and port, with the kind of its path to each device, port and
// processor, and the path's GB/s where there is room for it (up to kMostWideColumns columns).
std::string MatrixText(const topology::Graph& graph, const topology::Paths& paths);
inline constexpr size_t kMostWideColumns = 24;

// Returns the kinds of paths that `paths` has, each with what it means.
std::string LegendText(const topology::Graph& graph, const topology::Paths& paths);

// Returns a name such as "Intel Skylake" or "AMD"; empty for an unknown one.
std::string_view Name(topology::CpuModel model);

}  // namespace tutti::tools::topo
