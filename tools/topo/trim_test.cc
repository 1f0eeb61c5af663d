#include "topo/trim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/testing/testdata.h"

namespace tutti::tools::topo {
namespace {

using namespace topology;  // the test walks graphs

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<int> Ranks(const Graph& graph) {
  std::vector<int> ranks;
  for (const NodeIndex device : graph.Devices()) ranks.push_back(graph.node(device).rank);
  return ranks;
}

TEST(Trim, KeepsThePartOfTheRank) {
  const Graph graph = TestGraph(TestMachine(TestDataPath("machines/pcie-l40sx8.xml"))).graph;
  PathRules rules;
  rules.prefer_network = true;
  const Paths paths = ComputePaths(graph, rules);
  const Trimmed first = TrimToRank(graph, paths, 1);
  EXPECT_THAT(Ranks(first.graph), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(first.remarks,
              ElementsAre("Nothing but a network joins GPU 4, GPU 5, GPU 6, GPU 7 to "
                          "rank 1; they count as another host's."));
  EXPECT_THAT(Ranks(TrimToRank(graph, paths, 6).graph), ElementsAre(4, 5, 6, 7));
  // What is left is joined as before.
  const Paths rest = ComputePaths(first.graph, rules);
  EXPECT_EQ(Domains(first.graph, rest).size(), 1u);
  EXPECT_EQ(first.graph.OfKind(NodeKind::kNet).size(), 4u);
  EXPECT_EQ(first.graph.OfKind(NodeKind::kPci).size(), 4u);
}

TEST(Trim, LeavesWholeMachinesAlone) {
  const Graph graph = TestGraph(TestMachine(TestDataPath("machines/pcie-l40sx8.xml"))).graph;
  const Paths paths = ComputePaths(graph, {});
  const Trimmed whole = TrimToRank(graph, paths, 1);
  EXPECT_EQ(whole.graph.nodes().size(), graph.nodes().size());
  EXPECT_THAT(whole.remarks, IsEmpty());
  EXPECT_EQ(TrimToRank(graph, paths, 99).graph.Devices().size(), 8u);
}

}  // namespace
}  // namespace tutti::tools::topo
