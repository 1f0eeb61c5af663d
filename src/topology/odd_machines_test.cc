// Machines that nobody has sent a file of: few and many GPUs, none beside a NIC, mixed
// generations, several ranks on a GPU. Whatever they are, channels are sound, found in a bounded
// number of steps, and not far from what the links have.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "topology/in_network.h"
#include "topology/search.h"
#include "topology/testdata.h"

namespace tutti::topology {
namespace {

struct Parts {
  std::vector<int> gpus_per_cpu;
  int gpus_per_switch = 2;  // 0: GPUs hang at the processor
  std::set<int> nics;       // switches (or processors) with a NIC
  int sm = 80;
  int other_sm = 0;  // Every second GPU has this; 0: it has the same.
  int nvlinks = 0;   // Each GPU has so many to NVSwitches.
  int islands = 1;   // There are so many groups of NVSwitches.
  int ranks_per_gpu = 1;
  std::string vendor = "GenuineIntel";
};

std::string GpuText(const Parts& parts, int gpu, int of) {
  const int sm = parts.other_sm != 0 && gpu % 2 == 1 ? parts.other_sm : parts.sm;
  std::string text = fmt::format(
      "<pci busid=\"0000:{:02x}:00.0\" class=\"0x030200\" "
      "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">",
      0x40 + gpu);
  for (int i = 0; i < parts.ranks_per_gpu; ++i) {
    text += fmt::format("<gpu dev=\"{}\" sm=\"{}\" rank=\"{}\" gdr=\"1\">", gpu, sm,
                        gpu * parts.ranks_per_gpu + i);
    if (parts.nvlinks > 0) {
      text += fmt::format("<nvlink target=\"0000:{:02x}:00.0\" count=\"{}\" tclass=\"0x068000\"/>",
                          0xd0 + gpu * parts.islands / of, parts.nvlinks);
    }
    text += "</gpu>";
  }
  return text + "</pci>\n";
}

std::string NicText(int nic) {
  return fmt::format(
      "<pci busid=\"0000:{:02x}:00.0\" class=\"0x020700\" link_speed=\"16.0 GT/s "
      "PCIe\" link_width=\"16\"><nic><net name=\"mlx5_{}\" dev=\"{}\" "
      "speed=\"200000\" port=\"1\" guid=\"0x{:x}\" gdr=\"1\"/></nic></pci>\n",
      0x80 + nic, nic, nic, nic + 1);
}

std::string MachineText(const Parts& parts) {
  std::string text = "<system version=\"1\">\n";
  int of = 0;
  for (const int count : parts.gpus_per_cpu) of += count;
  int gpu = 0;
  int place = 0;
  int nic = 0;
  for (size_t cpu = 0; cpu < parts.gpus_per_cpu.size(); ++cpu) {
    text += fmt::format(
        "<cpu numaid=\"{}\" arch=\"x86_64\" vendor=\"{}\" familyid=\"6\" "
        "modelid=\"143\">\n",
        cpu, parts.vendor);
    int left = parts.gpus_per_cpu[cpu];
    do {
      const bool switched = parts.gpus_per_switch > 0;
      if (switched) {
        text += fmt::format(
            "<pci busid=\"0000:{:02x}:00.0\" class=\"0x060400\" link_speed=\"16.0 "
            "GT/s PCIe\" link_width=\"16\">\n",
            0x10 + place);
      }
      const int here = switched ? std::min(left, parts.gpus_per_switch) : left;
      for (int i = 0; i < here; ++i) text += GpuText(parts, gpu++, of);
      left -= here;
      if (parts.nics.contains(place)) text += NicText(nic++);
      if (switched) text += "</pci>\n";
      ++place;
    } while (left > 0);
    text += "</cpu>\n";
  }
  return text + "</system>\n";
}

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
    for (const Reducer reducer : {Reducer::kNvSwitch, Reducer::kNetworkSwitch})
      (void)FindStars(graph, paths, reducer, inter);
  }
}

TEST(OddMachines, AnyNumberOfGpusAtPciSwitches) {
  for (const int gpus : {1, 3, 6, 10, 16}) {
    SCOPED_TRACE(gpus);
    Parts parts;
    parts.gpus_per_cpu = {(gpus + 1) / 2, gpus / 2};
    if (gpus == 1) parts.gpus_per_cpu = {1};
    // Between Sapphire Rapids 22 GB/s, to and from PCI devices under them a fifth less of 24.
    Expect(MachineText(parts), 20);
    parts.nics = gpus % 2 == 0 ? std::set<int>{0} : std::set<int>{0, 1, 2, 3};
    Expect(MachineText(parts), 20);
  }
}

TEST(OddMachines, AnyNumberOfGpusAtAnNvSwitch) {
  for (const int gpus : {2, 3, 6, 10, 16}) {
    SCOPED_TRACE(gpus);
    Parts parts;
    parts.gpus_per_cpu = {gpus - gpus / 2, gpus / 2};
    parts.nvlinks = 12;
    parts.nics = {0, 1, 2};
    Expect(MachineText(parts), 12 * 20);
  }
}

// A file does not tell whether switches are joined with one another (HGX-2's two boards are): they
// count as one.
TEST(OddMachines, TwoIslandsOfNvSwitches) {
  Parts parts;
  parts.gpus_per_cpu = {4, 4};
  parts.nvlinks = 6;
  parts.islands = 2;
  Expect(MachineText(parts), 6 * 20);
}

TEST(OddMachines, GpusAtTheProcessorWithoutPeerAccess) {
  Parts parts;
  parts.gpus_per_cpu = {2, 1, 2, 1};
  parts.gpus_per_switch = 0;
  parts.vendor = "AuthenticAMD";
  PathRules refused;
  refused.peer_access_refused = true;
  Expect(MachineText(parts), 1, refused);
  parts.nics = {3};
  Expect(MachineText(parts), 1, refused);
}

TEST(OddMachines, OneNicFarAwayFromAllGpus) {
  Parts parts;
  parts.gpus_per_cpu = {4, 0};
  parts.nics = {2};  // It is at the other processor.
  Expect(MachineText(parts), 20);
  parts.nvlinks = 4;
  Expect(MachineText(parts), 4 * 20);
}

TEST(OddMachines, MixedGenerations) {
  Parts parts;
  parts.gpus_per_cpu = {3, 3};
  parts.sm = 90;
  parts.other_sm = 70;
  parts.nics = {0, 1};
  Expect(MachineText(parts), 15);
  parts.nvlinks = 6;
  Expect(MachineText(parts), 6 * 20);  // the older ones' NVLinks
}

TEST(OddMachines, SeveralRanksOnAGpu) {
  Parts parts;
  parts.gpus_per_cpu = {2};
  parts.ranks_per_gpu = 2;
  parts.nics = {0};
  Expect(MachineText(parts), 1);
}

TEST(OddMachines, RandomParts) {
  for (uint32_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    Parts parts;
    for (int cpu = pick(1, 4); cpu > 0; --cpu) parts.gpus_per_cpu.push_back(pick(0, 4));
    parts.gpus_per_cpu[0] += 1;
    parts.gpus_per_switch = pick(0, 3);
    for (int nic = pick(0, 3); nic > 0; --nic) parts.nics.insert(pick(0, 5));
    parts.sm = pick(60, 103);
    parts.other_sm = pick(0, 1) * pick(60, 103);
    parts.nvlinks = pick(0, 2) * pick(0, 9);
    parts.islands = pick(1, 2);
    parts.vendor = pick(0, 1) == 0 ? "GenuineIntel" : "AuthenticAMD";
    PathRules rules;
    rules.peer_access_refused = pick(0, 3) == 0;
    Expect(MachineText(parts), 0, rules);
  }
}

}  // namespace
}  // namespace tutti::topology
