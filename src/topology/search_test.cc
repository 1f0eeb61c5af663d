// The search on machines that are put together here; search_truth_test.cc has the real ones.

#include "topology/search.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "topology/testing/channel_difference.h"

namespace tutti::topology {
namespace {

NodeIndex AddGpu(Graph* graph, int device, int capability) {
  Node node;
  node.kind = NodeKind::kGpu;
  node.device = node.rank = device;
  node.id = static_cast<uint64_t>(device);
  node.compute_capability = capability;
  node.gpu_direct = true;
  return graph->AddNode(node);
}

NodeIndex AddNet(Graph* graph, int device, double gbps) {
  Node node;
  node.kind = NodeKind::kNet;
  node.device = device;
  node.id = static_cast<uint64_t>(device);
  node.gpu_direct = true;
  node.net_bandwidth_gbps = gbps;
  node.net_guid = static_cast<uint64_t>(device) + 1;
  return graph->AddNode(node);
}

NodeIndex AddOther(Graph* graph, NodeKind kind, uint64_t id) {
  Node node;
  node.kind = kind;
  node.id = id;
  return graph->AddNode(node);
}

// Four GPUs: 0-3 and 1-2 joined twice, the others once, of 20 GB/s each.
Graph FourGpus() {
  Graph graph;
  for (int i = 0; i < 4; ++i) AddGpu(&graph, i, 70);
  graph.AddLink(0, 3, LinkKind::kNvlink, 40);
  graph.AddLink(1, 2, LinkKind::kNvlink, 40);
  graph.AddLink(0, 1, LinkKind::kNvlink, 20);
  graph.AddLink(0, 2, LinkKind::kNvlink, 20);
  graph.AddLink(1, 3, LinkKind::kNvlink, 20);
  graph.AddLink(2, 3, LinkKind::kNvlink, 20);
  return graph;
}

// `count` GPUs at one NVSwitch, each with its own NIC beside it under a PCI switch.
Graph Switched(int count, double nvlink_gbps, double net_gbps) {
  Graph graph;
  for (int i = 0; i < count; ++i) AddGpu(&graph, i, 90);
  const NodeIndex nv = AddOther(&graph, NodeKind::kNvSwitch, 0);
  const NodeIndex cpu = AddOther(&graph, NodeKind::kCpu, 0);
  for (int i = 0; i < count; ++i) {
    const NodeIndex gpu = static_cast<NodeIndex>(i);
    graph.AddLink(gpu, nv, LinkKind::kNvlink, nvlink_gbps);
    const NodeIndex pci = AddOther(&graph, NodeKind::kPci, static_cast<uint64_t>(i));
    const NodeIndex nic = AddOther(&graph, NodeKind::kNic, static_cast<uint64_t>(i));
    const NodeIndex net = AddNet(&graph, i, net_gbps);
    graph.AddLink(gpu, pci, LinkKind::kPci, 48);
    graph.AddLink(pci, nic, LinkKind::kPci, 48);
    graph.AddLink(nic, net, LinkKind::kNetwork, net_gbps);
    graph.AddLink(pci, cpu, LinkKind::kPci, 48);
  }
  return graph;
}

Channels MustFind(const Graph& graph, const Demand& demand) {
  const Paths paths = ComputePaths(graph, {});
  const Result<Channels> found = Search(graph, paths, demand);
  EXPECT_TRUE(found.ok()) << found.status().message();
  if (!found.ok()) return {};
  const Status good = CheckChannels(graph, paths, graph.Devices(), found.value());
  EXPECT_TRUE(good.ok()) << good.message();
  return found.value();
}

std::vector<std::vector<NodeIndex>> Orders(const Channels& channels) {
  std::vector<std::vector<NodeIndex>> orders;
  for (const Channel& channel : channels.channels) orders.push_back(channel.devices);
  return orders;
}

TEST(Search, FindsTheFourRingsOfTheWorkedExample) {
  const Channels rings = MustFind(FourGpus(), {});
  EXPECT_EQ(Orders(rings), (std::vector<std::vector<NodeIndex>>{
                               {0, 1, 2, 3}, {0, 3, 2, 1}, {0, 3, 1, 2}, {0, 2, 1, 3}}));
  EXPECT_DOUBLE_EQ(rings.bandwidth_intra_gbps, 20);
  EXPECT_EQ(rings.kind_intra, PathKind::kNvlink);
  EXPECT_FALSE(rings.same_channels);
  EXPECT_DOUBLE_EQ(rings.bound_gbps, 80);
}

TEST(Search, UsesAllOfASwitchForRingsAndMoreOfItForTrees) {
  const Graph graph = Switched(8, 370.8, 50);
  const Channels rings = MustFind(graph, {});
  EXPECT_NEAR(rings.TotalGbps(), 370.8, 0.01);
  Demand demand;
  demand.pattern = Pattern::kTree;
  // Seven of eight devices send on in a chain; each is spared once.
  EXPECT_NEAR(MustFind(graph, demand).TotalGbps(), 370.8 * 8 / 7, 0.01);
}

TEST(Search, LeavesTheHostByEveryNic) {
  const Graph graph = Switched(8, 370.8, 50);
  Demand demand;
  demand.inter_host = true;
  const Channels rings = MustFind(graph, demand);
  EXPECT_NEAR(rings.TotalGbps(), 8 * 48, 0.01);
  EXPECT_EQ(rings.kind_inter, PathKind::kPix);
  EXPECT_EQ(rings.cross_nic, 2);
  for (size_t i = 0; i + 1 < rings.channels.size(); i += 2) {
    EXPECT_EQ(rings.channels[i].net_in, rings.channels[i + 1].net_out);
    EXPECT_EQ(rings.channels[i].net_out, rings.channels[i + 1].net_in);
  }
  demand.cross_nic = CrossNic::kNever;
  const Channels straight = MustFind(graph, demand);
  // The last device sends through another one by NVLink then, so each device's NVLink is the limit.
  EXPECT_NEAR(straight.TotalGbps(), 370.8, 0.01);
  EXPECT_EQ(straight.kind_inter, PathKind::kPxn);
  EXPECT_EQ(straight.cross_nic, 0);
  demand.pattern = Pattern::kTree;
  const Channels trees = MustFind(graph, demand);
  EXPECT_NEAR(trees.TotalGbps(), 8 * 48, 0.01);
  EXPECT_EQ(trees.kind_inter, PathKind::kPix);
}

TEST(Search, GivesTheSameAnswerEachTime) {
  const Graph graph = FourGpus();
  EXPECT_EQ(FirstDifference(MustFind(graph, {}), MustFind(graph, {})), std::nullopt);
}

TEST(Search, NamesTheFirstDifferenceOfTwoAnswers) {
  const Channels ours = MustFind(FourGpus(), {});
  Channels theirs = ours;
  std::swap(theirs.channels[2].devices[1], theirs.channels[2].devices[3]);
  EXPECT_EQ(FirstDifference(ours, theirs), "place 1 of channel 2 is 3 here and 2 there");
  theirs = ours;
  theirs.channels.pop_back();
  EXPECT_EQ(FirstDifference(ours, theirs), "the number of channels is 4 here and 3 there");
}

TEST(Search, RefusesWhatCannotBeAnswered) {
  const Graph empty;
  EXPECT_FALSE(Search(empty, ComputePaths(empty, {}), {}).ok());
  Demand between;
  between.inter_host = true;
  const Graph alone = FourGpus();
  EXPECT_FALSE(Search(alone, ComputePaths(alone, {}), between).ok());
  Graph apart;
  AddGpu(&apart, 0, 90);
  AddGpu(&apart, 1, 90);
  EXPECT_FALSE(Search(apart, ComputePaths(apart, {}), {}).ok());
}

TEST(CheckChannels, SeesWhatIsWrong) {
  const Graph graph = FourGpus();
  const Paths paths = ComputePaths(graph, {});
  const Channels good = MustFind(graph, {});
  Channels bad = good;
  bad.bandwidth_intra_gbps = 20.1;
  EXPECT_FALSE(CheckChannels(graph, paths, graph.Devices(), bad).ok());
  bad = good;
  bad.channels[1].devices[2] = bad.channels[1].devices[1];
  EXPECT_FALSE(CheckChannels(graph, paths, graph.Devices(), bad).ok());
  bad = good;
  bad.kind_intra = PathKind::kLocal;
  EXPECT_FALSE(CheckChannels(graph, paths, graph.Devices(), bad).ok());
  bad = good;
  bad.channels.push_back(bad.channels[0]);
  EXPECT_FALSE(CheckChannels(graph, paths, graph.Devices(), bad).ok());
}

// GPUs under PCI switches under processors, some joined by NVLink as well, NICs here and there.
Graph RandomMachine(std::mt19937* random) {
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(*random);
  };
  Graph graph;
  const int processors = pick(1, 2);
  std::vector<NodeIndex> gpus;
  std::vector<NodeIndex> cpus;
  int nets = 0;
  const int capability = pick(0, 1) != 0 ? 70 : 89;
  for (int c = 0; c < processors; ++c) {
    cpus.push_back(AddOther(&graph, NodeKind::kCpu, static_cast<uint64_t>(c)));
    const int switches = pick(1, 2);
    for (int s = 0; s < switches; ++s) {
      const NodeIndex pci = AddOther(&graph, NodeKind::kPci, static_cast<uint64_t>(c * 8 + s));
      graph.AddLink(pci, cpus.back(), LinkKind::kPci, pick(1, 2) * 24);
      for (int g = pick(1, 2); g > 0; --g) {
        gpus.push_back(AddGpu(&graph, static_cast<int>(gpus.size()), capability));
        graph.AddLink(gpus.back(), pci, LinkKind::kPci, pick(1, 2) * 12);
      }
      if (nets == 0 || pick(0, 1) != 0) {
        const NodeIndex nic = AddOther(&graph, NodeKind::kNic, static_cast<uint64_t>(nets));
        const double speed = pick(1, 4) * 6.25;
        const NodeIndex net = AddNet(&graph, nets++, speed);
        graph.AddLink(nic, pci, LinkKind::kPci, 24);
        graph.AddLink(nic, net, LinkKind::kNetwork, speed);
      }
    }
  }
  if (processors == 2) graph.AddLink(cpus[0], cpus[1], LinkKind::kSystem, pick(1, 4) * 10);
  const int nvlinks = pick(0, 8);
  for (int i = 0; i < nvlinks && gpus.size() > 1; ++i) {
    const size_t a = static_cast<size_t>(pick(0, static_cast<int>(gpus.size()) - 1));
    const size_t b = static_cast<size_t>(pick(0, static_cast<int>(gpus.size()) - 1));
    if (a != b) graph.AddLink(gpus[a], gpus[b], LinkKind::kNvlink, 20);
  }
  return graph;
}

// The parameter is the first of 30 seeds.
class RandomSearch : public ::testing::TestWithParam<uint32_t> {};
TEST_P(RandomSearch, KeepsItsPromises) {
  for (uint32_t seed = GetParam(); seed < GetParam() + 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const Graph graph = RandomMachine(&random);
    for (const bool inter : {false, true}) {
      for (const Pattern pattern : {Pattern::kRing, Pattern::kTree}) {
        Demand demand;
        demand.pattern = pattern;
        demand.inter_host = inter;
        demand.steps = 100'000;
        const Channels found = MustFind(graph, demand);
        EXPECT_GT(found.TotalGbps(), 0);
        EXPECT_LE(found.TotalGbps(), found.bound_gbps * (1 + 1e-9));
        EXPECT_LE(found.channels.size(), demand.max_channels);
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Machines, RandomSearch, ::testing::Values(0, 30, 60, 90, 120));

}  // namespace
}  // namespace tutti::topology
