// Tests what holds for every machine: random ones, and files that were damaged at random.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "topology/testing/machine_fuzz_target.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

class RandomMachine {
 public:
  explicit RandomMachine(unsigned seed) : random_(seed) {}

  Machine Make() {
    Machine machine;
    const int hosts = Pick(1, 2);
    for (int host = 0; host < hosts; ++host) {
      next_bus_ = 1;
      next_net_ = 0;
      next_gpu_ = 0;
      gpus_.clear();
      const size_t first = machine.cpus.size();
      const int cpus = Pick(1, 4);
      for (int numa = 0; numa < cpus; ++numa) {
        machine.cpus.push_back(MakeCpu(static_cast<uint64_t>(host) + 1, numa));
      }
      JoinGpus(machine, first);
    }
    return machine;
  }

 private:
  int Pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Pick(1, 100) <= percent; }

  CpuFact MakeCpu(uint64_t host, int numa) {
    constexpr const char* kVendors[] = {"GenuineIntel", "AuthenticAMD", "CentaurHauls", "Nobody"};
    CpuFact cpu;
    cpu.host_hash = host;
    cpu.numa = numa;
    cpu.arch = Chance(80) ? "x86_64" : "arm64";
    cpu.vendor = kVendors[Pick(0, 3)];
    cpu.family = 6;
    cpu.model = Pick(60, 220);
    for (int i = Pick(0, 3); i > 0; --i) cpu.pci.push_back(MakePci(0));
    for (int i = Pick(0, 1); i > 0; --i) cpu.nics.push_back(MakeNic());
    return cpu;
  }

  PciFact MakePci(int depth) {
    constexpr const char* kSpeeds[] = {"8.0 GT/s PCIe", "16 GT/s", "32.0 GT/s PCIe", ""};
    PciFact pci;
    pci.bus_id = static_cast<BusId>(next_bus_++) << 12;
    pci.device_class = kClassBridge;
    pci.link_speed = kSpeeds[Pick(0, 3)];
    pci.link_width = Pick(0, 1) * 8 + 8;
    if (Chance(30)) {  // one of Broadcom's
      pci.vendor = pci.subsystem_vendor = 0x1000;
      pci.device = Chance(50) ? 0xc010 : 0xc030;
      pci.subsystem_device =
          pci.device == 0xc010 ? 0xa096u : static_cast<uint32_t>(Pick(0, 1)) << 12;
    }
    if (depth < 3 && Chance(60 - 20 * depth)) {
      for (int i = Pick(1, 4); i > 0; --i) pci.children.push_back(MakePci(depth + 1));
    } else if (Chance(40)) {
      pci.nics.push_back(MakeNic());
    } else {
      pci.device_class = kClassGpu;
      GpuFact gpu;
      gpu.dev = next_gpu_++;
      gpu.rank = next_rank_++;
      gpu.sm = Pick(60, 103);
      gpu.gdr = Pick(0, 1);
      pci.gpus.push_back(gpu);
      gpus_.push_back(pci.bus_id);
    }
    return pci;
  }

  NicFact MakeNic() {
    NicFact nic;
    for (int i = Pick(1, 2); i > 0; --i) {
      NetFact net;
      net.dev = next_net_++;
      net.name = fmt::format("net{}", net.dev);
      net.speed_mbps = Pick(0, 4) * 100'000;
      net.gdr = Pick(0, 1);
      nic.nets.push_back(net);
    }
    return nic;
  }

  void JoinGpus(Machine& machine, size_t first_cpu) {
    const bool switched = Chance(30);
    const bool chip_to_chip = Chance(20);
    for (size_t i = first_cpu; i < machine.cpus.size(); ++i) {
      VisitPci(machine.cpus[i], machine.cpus[i].pci, [&](CpuFact&, PciFact& pci) {
        for (GpuFact& gpu : pci.gpus) {
          if (chip_to_chip) gpu.c2c.push_back({44712, Pick(1, 10)});
          if (switched) gpu.nvlinks.push_back({0xf000, kClassNvSwitch, Pick(1, 18), false});
          for (const BusId other : gpus_) {
            if (!Chance(30)) continue;  // Links to itself and from one side only happen too.
            gpu.nvlinks.push_back({other, kClassGpu, Pick(1, 4), false});
          }
        }
      });
    }
  }

  std::mt19937 random_;
  int next_bus_ = 1;
  int next_net_ = 0;
  int next_gpu_ = 0;
  int next_rank_ = 0;
  std::vector<BusId> gpus_;  // The GPUs of the host that is being made.
};

void Reverse(std::vector<PciFact>& devices) {
  std::reverse(devices.begin(), devices.end());
  for (PciFact& pci : devices) {
    for (NicFact& nic : pci.nics) std::reverse(nic.nets.begin(), nic.nets.end());
    for (GpuFact& gpu : pci.gpus) std::reverse(gpu.nvlinks.begin(), gpu.nvlinks.end());
    Reverse(pci.children);
  }
}

Machine Reversed(Machine machine) {
  std::reverse(machine.cpus.begin(), machine.cpus.end());
  for (CpuFact& cpu : machine.cpus) {
    std::reverse(cpu.nics.begin(), cpu.nics.end());
    for (NicFact& nic : cpu.nics) std::reverse(nic.nets.begin(), nic.nets.end());
    Reverse(cpu.pci);
  }
  return machine;
}

void ExpectSameGraph(const Graph& a, const Graph& b) {
  ASSERT_EQ(a.nodes().size(), b.nodes().size());
  ASSERT_EQ(a.links().size(), b.links().size());
  for (NodeIndex i = 0; i < a.nodes().size(); ++i) {
    EXPECT_EQ(a.node(i).kind, b.node(i).kind);
    EXPECT_EQ(a.node(i).id, b.node(i).id);
    EXPECT_EQ(a.node(i).host, b.node(i).host);
    EXPECT_EQ(a.node(i).rank, b.node(i).rank);
    EXPECT_EQ(a.node(i).links, b.node(i).links);
  }
  for (LinkIndex i = 0; i < a.links().size(); ++i) {
    EXPECT_EQ(a.link(i).from, b.link(i).from);
    EXPECT_EQ(a.link(i).to, b.link(i).to);
    EXPECT_EQ(a.link(i).bandwidth_gbps, b.link(i).bandwidth_gbps);
  }
}

void ExpectSamePaths(const Graph& graph, const Paths& a, const Paths& b) {
  for (NodeIndex from = 0; from < graph.nodes().size(); ++from) {
    for (NodeIndex to = 0; to < graph.nodes().size(); ++to) {
      EXPECT_EQ(a.Between(from, to).kind, b.Between(from, to).kind);
      EXPECT_EQ(a.Between(from, to).links, b.Between(from, to).links);
    }
  }
}

TEST(RandomMachines, PathsExistLinkByLink) {
  size_t devices = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = TestGraph(RandomMachine(seed).Make()).graph;
    devices += graph.Devices().size();
    for (const bool refused : {false, true}) {
      PathRules rules;
      rules.peer_access_refused = refused;
      rules.prefer_network = refused;
      fuzz::CheckPaths(graph, ComputePaths(graph, rules));
    }
  }
  EXPECT_GT(devices, 1000u) << "the machines are too small to show anything";
}

TEST(RandomMachines, OrderOfDetectionChangesNothing) {
  std::vector<Machine> machines;
  for (unsigned seed = 0; seed < 300; ++seed) machines.push_back(RandomMachine(seed).Make());
  for (const char* folder : {"machines", "amd"}) {
    for (const std::string& path : TestMachines(folder)) machines.push_back(TestMachine(path));
  }
  for (size_t i = 0; i < machines.size(); ++i) {
    SCOPED_TRACE(i);
    const Graph one = TestGraph(machines[i]).graph;
    const Graph other = TestGraph(Reversed(machines[i])).graph;
    ExpectSameGraph(one, other);
    ExpectSamePaths(one, ComputePaths(one, {}), ComputePaths(other, {}));
  }
}

TEST(RandomMachines, NodesLinksLeadDownBeforeUp) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Graph graph = TestGraph(RandomMachine(seed).Make()).graph;
    for (const NodeIndex pci : graph.OfKind(NodeKind::kPci)) {
      const std::vector<LinkIndex>& links = graph.node(pci).links;
      ASSERT_FALSE(links.empty());
      // Only one leads to a processor or to a switch above, and it is the last one.
      for (size_t i = 0; i + 1 < links.size(); ++i) {
        EXPECT_NE(graph.node(graph.link(links[i]).to).kind, NodeKind::kCpu);
      }
    }
  }
}

TEST(RandomMachines, SurviveWritingAndReading) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const Machine machine = RandomMachine(seed).Make();
    const Result<Machine> again = ParseMachineXml(FormatMachineXml(machine), "again");
    ASSERT_TRUE(again.ok()) << again.status().message();
    ExpectSameGraph(TestGraph(machine).graph, TestGraph(*again).graph);
  }
}

TEST(DamagedFiles, AreRefusedOrUnderstood) {
  std::vector<std::string> texts;
  for (const char* name : {"machines/gh200.xml", "machines/four-gpu-example.xml",
                           "machines/pcie-a10x4.xml", "amd/topo_4p3l.xml"}) {
    texts.push_back(*ReadXmlText(TestDataPath(name)));
  }
  constexpr std::string_view kBits = "<>/\"=&x0-9f \n";
  std::mt19937 random(7);
  const auto below = [&](size_t end) {
    return std::uniform_int_distribution<size_t>(0, end - 1)(random);
  };
  int understood = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string text = texts[below(texts.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = kBits[below(kBits.size())];
          break;
        case 1:
          text.erase(at, 1 + below(30));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(200)));
          break;
        default:
          text[at] = static_cast<char>(below(256));
      }
      if (text.empty()) text = " ";
    }
    SCOPED_TRACE(i);
    understood += fuzz::ReadMachine(text);
  }
  EXPECT_GT(understood, 100) << "too few to show anything";
  EXPECT_LT(understood, 3900) << "the damage is too small";
}

}  // namespace
}  // namespace tutti::topology
