#include "topo/in_network.h"

#include <gtest/gtest.h>

#include <map>

#include "topology/testing/odd_machines.h"
#include "topology/testing/testdata.h"

namespace tutti::tools::topo {
namespace {

using topology::Graph;
using topology::LinkIndex;
using topology::NodeIndex;
using topology::NodeKind;
using topology::PathKind;
using topology::Paths;
using topology::TestDataPath;
using topology::TestGraph;
using topology::TestMachine;
using topology::TestMachines;

struct Studied {
  explicit Studied(const std::string& name)
      : graph(TestGraph(TestMachine(TestDataPath("machines/" + name + ".xml"))).graph),
        paths(ComputePaths(graph, {})) {}
  Result<Stars> Find(Reducer reducer, bool inter_host) const {
    return FindStars(graph, paths, reducer, inter_host);
  }
  Graph graph;
  Paths paths;
};

// What NCCL 2.30.7's search finds for its pattern NVLS: heads × GB/s of each.
TEST(InNetwork, NvSwitchesBearAtLeastWhatNcclFinds) {
  const std::map<std::string, std::pair<double, double>> kNccl = {
      {"dgx-h100", {8 * 40, 0}},        {"h100x8-ibm-vsi", {8 * 40, 8 * 24}},
      {"h200x8-vm", {8 * 40, 1.2}},     {"pub-hgx-h200x8", {8 * 40, 1.2}},
      {"pub-gb300-tray", {4 * 90, 12}},
  };
  for (const auto& [name, totals] : kNccl) {
    SCOPED_TRACE(name);
    const Studied machine(name);
    for (const bool inter : {false, true}) {
      const Result<Stars> found = machine.Find(Reducer::kNvSwitch, inter);
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_GE(found->TotalGbps(), (inter ? totals.second : totals.first) * (1 - 1e-6));
      EXPECT_EQ(found->kind_intra, PathKind::kNvlink);
    }
  }
}

// Each of eight links bears eight parts, and its own head's once more.
TEST(InNetwork, ALinkBearsAllPartsAndItsOwnTwice) {
  const Result<Stars> found = Studied("dgx-h100").Find(Reducer::kNvSwitch, false);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->heads.size(), 8u);
  EXPECT_NEAR(found->bandwidth_gbps, 370.8 / 9, 1e-3);
}

TEST(InNetwork, HeadsBetweenHostsAreBesideTheirPorts) {
  const Studied machine("dgx-h100");
  for (const Reducer reducer : {Reducer::kNvSwitch, Reducer::kNetworkSwitch}) {
    const Result<Stars> found = machine.Find(reducer, true);
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_EQ(found->heads.size(), 8u);
    EXPECT_EQ(found->kind_inter, PathKind::kPix);
    for (size_t i = 0; i < 8; ++i) {
      EXPECT_EQ(machine.graph.node(found->heads[i].device).device,
                machine.graph.node(found->heads[i].net).device);
    }
  }
}

// Fourteen parts pass each link in either direction: seven to other heads, seven as a head.
TEST(InNetwork, NetworkSwitchesTakeWhatTheHostCanBringThem) {
  const Result<Stars> found = Studied("dgx-h100").Find(Reducer::kNetworkSwitch, true);
  ASSERT_TRUE(found.ok());
  EXPECT_NEAR(found->bandwidth_gbps, 370.8 / 14, 1e-3);
}

TEST(InNetwork, SaysWhyNot) {
  const auto why = [](const std::string& name, Reducer reducer, bool inter) {
    const Result<Stars> found = Studied(name).Find(reducer, inter);
    return found.ok() ? std::string() : std::string(found.status().message());
  };
  EXPECT_NE(why("dgx-a100", Reducer::kNvSwitch, false).find("older than Hopper"),
            std::string::npos);
  EXPECT_NE(why("four-gpu-example", Reducer::kNvSwitch, false).find("older than"),
            std::string::npos);
  EXPECT_NE(why("dgx-h100", Reducer::kNetworkSwitch, false).find("the job has one"),
            std::string::npos);
  EXPECT_NE(why("four-gpu-example", Reducer::kNetworkSwitch, true).find("no port"),
            std::string::npos);
  const Graph empty;
  EXPECT_FALSE(FindStars(empty, ComputePaths(empty, {}), Reducer::kNvSwitch, false).ok());
  EXPECT_FALSE(FindStars(empty, ComputePaths(empty, {}), Reducer::kNvSwitch, true).ok());
}

// Adds up what the found star takes of every link of the host, along the paths.
void ExpectLinksToBear(const Graph& graph, const Paths& paths, const Stars& found) {
  std::vector<double> loads(graph.links().size());
  const auto load = [&](NodeIndex from, NodeIndex to) {
    for (const LinkIndex link : paths.Between(from, to).links) loads[link] += found.bandwidth_gbps;
  };
  for (const Head& head : found.heads) {
    for (const NodeIndex device : graph.OfKind(NodeKind::kGpu)) {
      load(device, head.device);
      load(head.device, device);
    }
    load(head.net, head.device);
    load(head.device, head.net);
  }
  for (LinkIndex i = 0; i < loads.size(); ++i)
    EXPECT_LE(loads[i], graph.link(i).bandwidth_gbps * (1 + 1e-6)) << i;
  EXPECT_GT(found.bandwidth_gbps, 0);
}

TEST(InNetwork, KeepsWithinTheLinksOfEveryMachine) {
  for (const std::string& path : TestMachines("machines")) {
    SCOPED_TRACE(path);
    const Graph graph = TestGraph(TestMachine(path)).graph;
    const Paths paths = ComputePaths(graph, {});
    const Result<Stars> found = FindStars(graph, paths, Reducer::kNetworkSwitch, true);
    if (found.ok()) ExpectLinksToBear(graph, paths, *found);
  }
}

TEST(InNetwork, KeepsWithinTheLinksOfRandomMachines) {
  size_t with_heads = 0;
  for (uint32_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    const topology::RandomMachine machine = topology::MakeRandomMachine(seed);
    const auto parsed = topology::ParseMachineXml(machine.text, "odd");
    ASSERT_TRUE(parsed.ok()) << parsed.status().message();
    const Graph graph = TestGraph(*parsed).graph;
    const Paths paths = ComputePaths(graph, machine.rules);
    for (const bool inter : {false, true}) {
      const Result<Stars> inside = FindStars(graph, paths, Reducer::kNvSwitch, inter);
      if (inside.ok()) {
        EXPECT_GT(inside->TotalGbps(), 0);
      }
    }
    const Result<Stars> found = FindStars(graph, paths, Reducer::kNetworkSwitch, true);
    if (!found.ok()) continue;
    ExpectLinksToBear(graph, paths, *found);
    ++with_heads;
  }
  EXPECT_GT(with_heads, 0u);
}

}  // namespace
}  // namespace tutti::tools::topo
