#pragma once

// Finds and reads the machines of tests/data/topologies. For tests only.

#include <string>
#include <vector>

#include "topology/graph_builder.h"
#include "topology/machine_xml.h"

namespace tutti::topology {

std::string TestDataPath(const std::string& name);

// Paths of all machine files, sorted.
std::vector<std::string> TestMachines(const std::string& folder = "machines");

// These fail the test that calls them when there is no such thing.
Machine TestMachine(const std::string& path);
BuiltGraph TestGraph(const Machine& machine);

// Nodes of a kind in the order of the file.
std::vector<NodeIndex> InFileOrder(const Graph& graph, NodeKind kind);

}  // namespace tutti::topology
