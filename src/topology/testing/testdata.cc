#include "topology/testing/testdata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tutti::topology {

std::string TestDataPath(const std::string& name) {
  return std::string(TUTTI_SOURCE_DIR) + "/tests/data/topologies/" + name;
}

std::vector<std::string> TestMachines(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TestDataPath(folder))) {
    if (entry.path().extension() == ".xml") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Machine TestMachine(const std::string& path) {
  Result<Machine> machine = ReadMachineFile(path);
  EXPECT_TRUE(machine.ok()) << machine.status().message();
  return machine.ok() ? std::move(machine).value() : Machine();
}

BuiltGraph TestGraph(const Machine& machine) {
  Result<BuiltGraph> built = BuildGraph(machine);
  EXPECT_TRUE(built.ok()) << built.status().message();
  return built.ok() ? std::move(built).value() : BuiltGraph();
}

std::vector<NodeIndex> InFileOrder(const Graph& graph, NodeKind kind) {
  const auto nodes = graph.OfKind(kind);
  std::vector<NodeIndex> ordered(nodes.begin(), nodes.end());
  std::sort(ordered.begin(), ordered.end(),
            [&](NodeIndex a, NodeIndex b) { return graph.node(a).order < graph.node(b).order; });
  return ordered;
}

}  // namespace tutti::topology
