// On every machine of tests/data/topologies the search finds at least the bandwidth that NCCL's
// finds, by paths of the same or a better kind. bench/topology_bench.cc has the times.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "topology/search.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

using Json = nlohmann::json;

constexpr double kTolerance = 1e-4;  // NCCL's figures are rounded floats

PathKind KindOf(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(PathKind::kDis); ++i) {
    if (Name(static_cast<PathKind>(i)) == name) return static_cast<PathKind>(i);
  }
  ADD_FAILURE() << "no path is of kind " << name;
  return PathKind::kLocal;
}

class SearchTruth : public testing::TestWithParam<std::string> {};

// `whole`: NCCL's answer is about the whole machine, not a part of it.
void ExpectAtLeast(const Channels& found, const Json& truth, bool whole, const std::string& what) {
  const double count = static_cast<double>(found.channels.size());
  const double want = truth.at("nChannels").get<double>();
  const double intra = want * truth.at("bwIntra").get<double>();
  EXPECT_GE(count * found.bandwidth_intra_gbps, intra - kTolerance) << what;
  if (whole) {
    EXPECT_LE(found.kind_intra, KindOf(truth.at("typeIntra"))) << what;
  }
  if (found.inter_host) {
    const double inter = want * truth.at("bwInter").get<double>();
    EXPECT_GE(count * found.bandwidth_inter_gbps, inter - kTolerance) << what;
    EXPECT_LE(found.kind_inter, KindOf(truth.at("typeInter"))) << what;
    EXPECT_TRUE(found.cross_nic == 0 || found.cross_nic == 2) << what;
  }
}

void ExpectFound(const Graph& graph, const PathRules& rules, const Json& of_case, bool inter,
                 bool whole, const std::string& name) {
  const Paths paths = ComputePaths(graph, rules);
  for (const auto& [key, pattern] :
       {std::pair("ring", Pattern::kRing), {"tree", Pattern::kBalancedTree}}) {
    if (!of_case.contains(key)) continue;
    const std::string what = name + " " + key;
    Demand demand;
    demand.pattern = pattern;
    demand.inter_host = inter;
    const Result<Channels> found = Search(graph, paths, demand);
    ASSERT_TRUE(found.ok()) << what << ": " << found.status().message();
    const Channels& got = found.value();
    const Json& truth = of_case.at(key);
    const Status good = CheckChannels(graph, paths, graph.Devices(), got);
    EXPECT_TRUE(good.ok()) << what << ": " << good.message();
    ExpectAtLeast(got, truth, whole, what);
  }
}

TEST_P(SearchTruth, FindsNoLessThanNccl) {
  const std::string name = GetParam();
  const Json truth = Json::parse(std::ifstream(TestDataPath("truth.json"))).at("machines").at(name);
  const BuiltGraph built = TestGraph(TestMachine(TestDataPath("machines/" + name + ".xml")));
  for (const auto& [key, of_case] : truth.at("cases").items()) {
    if (key.find("seen-by") != std::string::npos) continue;
    PathRules rules;
    rules.peer_access_refused = key.ends_with("nop2p");
    // NCCL cuts this machine in two and searches each half; here it stays whole, so that paths go
    // between the processors.
    const bool whole = name != "pcie-l40sx8";
    ExpectFound(built.graph, rules, of_case, key.starts_with("inter"), whole, name + " " + key);
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  const Json truth = Json::parse(std::ifstream(TestDataPath("truth.json"))).at("machines");
  for (const auto& [name, value] : truth.items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Machines, SearchTruth, testing::ValuesIn(Names()), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace tutti::topology
