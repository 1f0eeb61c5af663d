#pragma once

// Finds and reads the machines of tests/data/topologies. For tests only.

#include <string>
#include <vector>

#include "topology/graph_builder.h"
#include "topology/machine_xml.h"

namespace tutti::topology {

std::string TestDataPath(const std::string& name);

// Returns the paths of all machine files, sorted.
std::vector<std::string> TestMachines(const std::string& folder = "machines");

// Both fail the calling test where the file or the graph cannot be had.
Machine TestMachine(const std::string& path);
BuiltGraph TestGraph(const Machine& machine);

// Returns the nodes of a kind in the order of the file.
std::vector<NodeIndex> InFileOrder(const Graph& graph, NodeKind kind);

}  // namespace tutti::topology
