// Machines that nobody has sent a file of: few and many GPUs, none beside a NIC, mixed
// generations, several ranks on a GPU. Whatever they are, channels are sound, found in a bounded
// number of steps, and not far from what the links have.

#include "topology/testing/odd_machines.h"

#include <gtest/gtest.h>

#include <set>

#include "topology/search.h"
#include "topology/testing/channel_difference.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

// Checks both patterns, within a host and between hosts where there is a NIC: channels are sound,
// found within the steps, and the same twice.
void Expect(const std::string& text, double least_ring_gbps, const PathRules& rules = {}) {
  const Result<Machine> machine = ParseMachineXml(text, "odd");
  ASSERT_TRUE(machine.ok()) << machine.status().message() << "\n" << text;
  const Graph graph = TestGraph(*machine).graph;
  const Paths paths = ComputePaths(graph, rules);
  for (const bool inter : {false, true}) {
    if (inter && graph.OfKind(NodeKind::kNet).empty()) continue;
    for (const Pattern pattern : {Pattern::kRing, Pattern::kBalancedTree}) {
      Demand demand;
      demand.pattern = pattern;
      demand.inter_host = inter;
      const Result<Channels> found = Search(graph, paths, demand);
      ASSERT_TRUE(found.ok()) << found.status().message() << "\n" << text;
      const Status sound = CheckChannels(graph, paths, graph.Devices(), *found);
      EXPECT_TRUE(sound.ok()) << sound.message() << "\n" << text;
      EXPECT_GT(found->TotalGbps(), 0);
      EXPECT_LE(found->TotalGbps(), found->bound_gbps * (1 + 1e-9));
      EXPECT_LE(found->steps, 2 * demand.steps) << text;
      if (!inter && pattern == Pattern::kRing) {
        EXPECT_GE(found->TotalGbps(), least_ring_gbps * (1 - 1e-6)) << text;
      }
      EXPECT_EQ(FirstDifference(*found, *Search(graph, paths, demand)), std::nullopt);
    }
  }
}

TEST(OddMachines, AnyNumberOfGpusAtPciSwitches) {
  for (const int gpus : {1, 3, 6, 10, 16}) {
    SCOPED_TRACE(gpus);
    OddParts parts;
    parts.gpus_per_cpu = {(gpus + 1) / 2, gpus / 2};
    if (gpus == 1) parts.gpus_per_cpu = {1};
    // Between Sapphire Rapids 22 GB/s, to and from PCI devices under them a fifth less of 24.
    Expect(OddMachineText(parts), 20);
    parts.nics = gpus % 2 == 0 ? std::set<int>{0} : std::set<int>{0, 1, 2, 3};
    Expect(OddMachineText(parts), 20);
  }
}

TEST(OddMachines, AnyNumberOfGpusAtAnNvSwitch) {
  for (const int gpus : {2, 3, 6, 10, 16}) {
    SCOPED_TRACE(gpus);
    OddParts parts;
    parts.gpus_per_cpu = {gpus - gpus / 2, gpus / 2};
    parts.nvlinks = 12;
    parts.nics = {0, 1, 2};
    Expect(OddMachineText(parts), 12 * 20);
  }
}

// A file does not tell whether switches are joined with one another (HGX-2's two boards are): they
// count as one.
TEST(OddMachines, TwoIslandsOfNvSwitches) {
  OddParts parts;
  parts.gpus_per_cpu = {4, 4};
  parts.nvlinks = 6;
  parts.islands = 2;
  Expect(OddMachineText(parts), 6 * 20);
}

TEST(OddMachines, GpusAtTheProcessorWithoutPeerAccess) {
  OddParts parts;
  parts.gpus_per_cpu = {2, 1, 2, 1};
  parts.gpus_per_switch = 0;
  parts.vendor = "AuthenticAMD";
  PathRules refused;
  refused.peer_access_refused = true;
  Expect(OddMachineText(parts), 1, refused);
  parts.nics = {3};
  Expect(OddMachineText(parts), 1, refused);
}

TEST(OddMachines, OneNicFarAwayFromAllGpus) {
  OddParts parts;
  parts.gpus_per_cpu = {4, 0};
  parts.nics = {2};  // It is at the other processor.
  Expect(OddMachineText(parts), 20);
  parts.nvlinks = 4;
  Expect(OddMachineText(parts), 4 * 20);
}

TEST(OddMachines, MixedGenerations) {
  OddParts parts;
  parts.gpus_per_cpu = {3, 3};
  parts.sm = 90;
  parts.other_sm = 70;
  parts.nics = {0, 1};
  Expect(OddMachineText(parts), 15);
  parts.nvlinks = 6;
  Expect(OddMachineText(parts), 6 * 20);  // the older ones' NVLinks
}

TEST(OddMachines, SeveralRanksOnAGpu) {
  OddParts parts;
  parts.gpus_per_cpu = {2};
  parts.ranks_per_gpu = 2;
  parts.nics = {0};
  Expect(OddMachineText(parts), 1);
}

TEST(OddMachines, RandomParts) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    const RandomMachine machine = MakeRandomMachine(seed);
    Expect(machine.text, 0, machine.rules);
  }
}

}  // namespace
}  // namespace tutti::topology
