#pragma once

// Makes the graph of what a machine is said to be: which devices become nodes, and what their
// links carry (bandwidth.h). Pure; the same machine gives the same graph in whatever order its
// devices were found.

#include <string>
#include <vector>

#include "base/status.h"
#include "topology/graph.h"
#include "topology/machine.h"

namespace tutti::topology {

// Bounds on what is taken for a machine; the largest known one, a domain of 576 GPUs with as many
// NICs, keeps well below them. The paths of a graph take memory with its nodes times those that
// have paths of their own: kMostPaths of them are about half a gigabyte.
inline constexpr size_t kMostDevices = 1024;     // GPUs and host devices
inline constexpr size_t kMostNets = 1024;        // ports
inline constexpr size_t kMostNumaNodes = 128;    // A host has no more: each is linked with each.
inline constexpr size_t kMostGraphNodes = 8192;  // The whole graph has no more.
inline constexpr size_t kMostPaths = 8'000'000;

struct BuiltGraph {
  Graph graph;
  // What was guessed or passed over, a sentence each; begins with the machine's own guesses.
  std::vector<std::string> remarks;
};

// Returns InvalidUsage when the machine has more devices than any real one. GPUs without a rank are
// part of the graph only when no device has one: then they count as ranks in the order of hosts and
// devices.
Result<BuiltGraph> BuildGraph(Machine machine);

// `graph` without the devices (GPUs or host devices) for which `keep` is false; `keep` goes by the
// order of graph.Devices().
Graph WithoutDevices(const Graph& graph, const std::vector<bool>& keep);

}  // namespace tutti::topology
