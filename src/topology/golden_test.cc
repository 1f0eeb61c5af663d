// Every machine of tests/data/topologies has the paths that NCCL 2.30.7 computed for it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "topology/paths.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

using Json = nlohmann::json;

const Json& Truth() {
  static const Json truth = Json::parse(std::ifstream(TestDataPath("truth.json")));
  return truth.at("machines");
}

struct Cell {
  std::string kind;
  double gbps = 0;
  int hops = 0;
};

// "NVL/370.8/4*2 LOC/5000/0" → three cells.
std::vector<Cell> ParseRow(const std::string& row) {
  std::vector<Cell> cells;
  std::istringstream words(row);
  for (std::string word; words >> word;) {
    const size_t star = word.find('*');
    const size_t slash = word.find('/');
    const size_t last = word.rfind('/');
    const Cell cell = {word.substr(0, slash), std::stod(word.substr(slash + 1)),
                       std::stoi(word.substr(last + 1))};
    cells.insert(cells.end(), star == std::string::npos ? 1 : std::stoul(word.substr(star + 1)),
                 cell);
  }
  return cells;
}

// NCCL 2.30 counts a link between a GPU and its device at each GPU that a path begins at, ends at
// or is relayed by; a GPU that merely forwards NVLink has none.
int HopsInNccl(const Graph& graph, const Path& path) {
  if (path.links.empty()) return 0;
  int hops = static_cast<int>(path.links.size());
  const auto is_gpu = [&](NodeIndex node) { return graph.node(node).kind == NodeKind::kGpu; };
  hops += is_gpu(graph.link(path.links.front()).from) + is_gpu(graph.link(path.links.back()).to);
  return path.kind == PathKind::kPxn ? hops + 2 : hops;
}

void ExpectMatrix(const Graph& graph, const Paths& paths, NodeKind from_kind, NodeKind to_kind,
                  const Json& expected, const std::string& what) {
  const std::vector<NodeIndex> from = InFileOrder(graph, from_kind);
  const std::vector<NodeIndex> to = InFileOrder(graph, to_kind);
  ASSERT_EQ(expected.size(), from.size()) << what;
  for (size_t i = 0; i < from.size(); ++i) {
    const std::vector<Cell> row = ParseRow(expected[i]);
    ASSERT_EQ(row.size(), to.size()) << what;
    for (size_t j = 0; j < to.size(); ++j) {
      const Path& path = paths.Between(from[i], to[j]);
      const std::string where = fmt::format("{} [{}][{}]", what, i, j);
      EXPECT_EQ(Name(path.kind), row[j].kind) << where;
      EXPECT_NEAR(path.bandwidth_gbps, row[j].gbps, 1e-3) << where;
      EXPECT_EQ(HopsInNccl(graph, path), row[j].hops) << where;
    }
  }
}

void ExpectPaths(const Graph& graph, const PathRules& rules, const Json& expected,
                 const std::string& what) {
  const Paths paths = ComputePaths(graph, rules);
  const auto expect = [&](NodeKind from, NodeKind to, const char* key) {
    if (!expected.contains(key)) return;
    ExpectMatrix(graph, paths, from, to, expected.at(key), fmt::format("{} {}", what, key));
  };
  expect(NodeKind::kGpu, NodeKind::kGpu, "gpuGpu");
  expect(NodeKind::kGpu, NodeKind::kNet, "gpuNet");
  expect(NodeKind::kGpu, NodeKind::kCpu, "gpuCpu");
}

Graph Only(const Graph& graph, const Json& ranks) {
  std::vector<bool> keep;
  for (const NodeIndex device : graph.Devices()) {
    keep.push_back(std::find(ranks.begin(), ranks.end(), graph.node(device).rank) != ranks.end());
  }
  return WithoutDevices(graph, keep);
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, PathsAgreeWithNccl) {
  const std::string name = GetParam();
  const Json& truth = Truth().at(name);
  const BuiltGraph built = TestGraph(TestMachine(TestDataPath("machines/" + name + ".xml")));
  PathRules rules;
  // NCCL's rule, under which it trims machines; ours keeps them whole.
  rules.prefer_network = true;
  if (truth.contains("pathsBeforeTrim")) {
    ExpectPaths(built.graph, rules, truth.at("pathsBeforeTrim"), name + " before trim");
  }
  ExpectPaths(Only(built.graph, truth.at("gpuRanks")), rules, truth.at("paths"), name);
  for (const auto& [key, value] : truth.at("cases").items()) {
    if (!value.contains("paths")) continue;
    PathRules of_case = rules;
    of_case.peer_access_refused = key.ends_with("nop2p");
    const Json& ranks = value.contains("gpuRanks") ? value.at("gpuRanks") : truth.at("gpuRanks");
    ExpectPaths(Only(built.graph, ranks), of_case, value.at("paths"), name + " " + key);
  }
}

TEST_P(Golden, RanksAndLocalDevicesAgreeWithNccl) {
  const std::string name = GetParam();
  const Json& truth = Truth().at(name);
  const BuiltGraph built = TestGraph(TestMachine(TestDataPath("machines/" + name + ".xml")));
  const Graph graph = Only(built.graph, truth.at("gpuRanks"));
  const std::vector<NodeIndex> gpus = InFileOrder(graph, NodeKind::kGpu);
  for (size_t i = 0; i < gpus.size(); ++i) {
    EXPECT_EQ(graph.node(gpus[i]).rank, truth.at("gpuRanks")[i]);
  }
  const Paths paths = ComputePaths(graph, {});
  const std::vector<NodeIndex> nets = InFileOrder(graph, NodeKind::kNet);
  ASSERT_EQ(nets.size(), truth.at("nets").size());
  for (size_t i = 0; i < nets.size(); ++i) {
    const Json& expected = truth.at("nets")[i];
    EXPECT_EQ(graph.node(nets[i]).device, expected.at("dev"));
    if (graph.node(nets[i]).links.empty()) continue;  // a second port of the same number
    const NodeIndex device = LocalDevice(graph, paths, nets[i]);
    EXPECT_EQ(device == kNoIndex ? -1 : graph.node(device).rank, expected.at("localGpuRank"))
        << name << " net " << i;
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, value] : Truth().items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Machines, Golden, testing::ValuesIn(Names()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(Golden, ThereAreAllMachines) { EXPECT_EQ(Names().size(), 19u); }

// Where NCCL cuts this machine in two, the processors join it.
TEST(Golden, MachinesStayWholeUnlessTheNetworkIsPreferred) {
  const BuiltGraph built = TestGraph(TestMachine(TestDataPath("machines/pcie-l40sx8.xml")));
  EXPECT_EQ(Domains(built.graph, ComputePaths(built.graph, {})).size(), 1u);
  PathRules rules;
  rules.prefer_network = true;
  const auto cut = Domains(built.graph, ComputePaths(built.graph, rules));
  ASSERT_EQ(cut.size(), 2u);
  EXPECT_EQ(cut[0].size(), 4u);
  EXPECT_EQ(built.graph.node(cut[1][0]).rank, 4);
}

}  // namespace
}  // namespace tutti::topology
