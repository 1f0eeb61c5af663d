#pragma once

// Makes the graph of a described machine: chooses which devices become nodes, and how much their
// links carry (bandwidth.h). Pure; the same machine gives the same graph in whatever order its
// devices were found.

#include <string>
#include <vector>

#include "base/status.h"
#include "topology/graph.h"
#include "topology/machine.h"

namespace tutti::topology {

// Bound the size of a machine. The largest known machine, a domain of 576 GPUs with as many NICs,
// keeps well below the bounds. The paths of a graph take memory with the number of nodes times the
// number of nodes that have paths of their own: kMostPaths paths take about half a gigabyte.
inline constexpr size_t kMostDevices = 1024;     // GPUs and host devices
inline constexpr size_t kMostNets = 1024;        // ports
inline constexpr size_t kMostNumaNodes = 128;    // of a host; each is linked with each
inline constexpr size_t kMostGraphNodes = 8192;  // of the whole graph
inline constexpr size_t kMostPaths = 8'000'000;

struct BuiltGraph {
  Graph graph;
  // Sentences about parts that were guessed or passed over, beginning with the machine's own
  // guesses.
  std::vector<std::string> remarks;
};

// Returns InvalidUsage when the machine has more devices than any real machine. GPUs without a rank
// are part of the graph only when no device has a rank: the GPUs then count as ranks in the order
// of hosts and devices.
Result<BuiltGraph> BuildGraph(Machine machine);

// Returns `graph` without the devices (GPUs or host devices) for which `keep` is false. `keep` has
// the order of graph.Devices().
Graph WithoutDevices(const Graph& graph, const std::vector<bool>& keep);

}  // namespace tutti::topology
