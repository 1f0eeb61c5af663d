#include "topology/merge.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "topology/paths.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

using testing::HasSubstr;

Machine Named(const std::string& name) {
  return TestMachine(TestDataPath("machines/" + name + ".xml"));
}

// Nodes and links as a text, whatever numbers they have.
std::string Text(const Graph& graph) {
  std::vector<std::string> lines;
  const auto name = [&](NodeIndex index) {
    const Node& node = graph.node(index);
    return fmt::format("{}{}-{:x}", Name(node.kind), node.host, node.id);
  };
  for (const Link& link : graph.links()) {
    // A NIC without an address has no stable number.
    lines.push_back(fmt::format("{} {} {} {:.3f}\n", name(link.from), Name(link.kind),
                                name(link.to), link.bandwidth_gbps));
  }
  for (NodeIndex index = 0; index < graph.nodes().size(); ++index) {
    const Node& node = graph.node(index);
    lines.push_back(fmt::format("{} dev {} rank {} cc {} direct {} {}\n", name(index), node.device,
                                node.rank, node.compute_capability, node.gpu_direct,
                                node.net_bandwidth_gbps));
  }
  std::sort(lines.begin(), lines.end());
  return fmt::format("{}", fmt::join(lines, ""));
}

// Only the PCI tree, as the files of cloud vendors describe it.
Machine PciTreeOf(Machine machine) {
  VisitPci(machine, [](CpuFact&, PciFact& pci) {
    pci.gpus.clear();
    pci.nics.clear();
  });
  for (CpuFact& cpu : machine.cpus) cpu.nics.clear();
  return machine;
}

// Returns what a virtual machine shows of `machine`: every device right below one processor.
Machine FlatViewOf(const Machine& machine) {
  Machine flat = machine;
  flat.cpus.resize(1);
  flat.cpus[0].pci.clear();
  VisitPci(machine, [&](const CpuFact&, const PciFact& pci) {
    if (pci.gpus.empty() && pci.nics.empty()) return;
    PciFact copy = pci;
    copy.children.clear();
    copy.link_speed.clear();
    copy.link_width = 0;
    flat.cpus[0].pci.push_back(copy);
  });
  return flat;
}

TEST(Merge, PciTreeOfAFileTakesDetectedDevices) {
  for (const char* name : {"aws-p4d", "azure-ndv4", "dgx-h100", "dgx1-v100"}) {
    const Machine whole = Named(name);
    const Machine detected = FlatViewOf(whole);
    ASSERT_NE(Text(TestGraph(detected).graph), Text(TestGraph(whole).graph)) << name;
    const Machine merged = MergeDetected(PciTreeOf(whole), detected);
    EXPECT_EQ(Text(TestGraph(merged).graph), Text(TestGraph(whole).graph)) << name;
  }
}

TEST(Merge, WithoutAFileTheDetectionIsLeftAsItIs) {
  const Machine detected = Named("dgx-h100");
  EXPECT_EQ(FormatMachineXml(MergeDetected(Machine(), detected)), FormatMachineXml(detected));
}

TEST(Merge, FileIsRightAboutWhatItSays) {
  Machine file = Named("dgx-h100");
  Machine detected = file;
  VisitPci(detected, [](CpuFact&, PciFact& pci) { pci.link_width = 1; });
  detected.cpus[0].vendor = "AuthenticAMD";
  EXPECT_EQ(FormatMachineXml(MergeDetected(file, detected)), FormatMachineXml(file));
}

TEST(Merge, RanksAndNumbersAreThoseOfNow) {
  const Machine file = Named("dgx-h100");
  Machine detected = file;
  VisitPci(detected, [](CpuFact&, PciFact& pci) {
    for (GpuFact& gpu : pci.gpus) gpu.rank = 100 + gpu.rank;
    for (NicFact& nic : pci.nics) nic.nets[0].dev += 10;
  });
  const Graph graph = TestGraph(MergeDetected(file, detected)).graph;
  EXPECT_EQ(graph.node(graph.Devices()[0]).rank, 100);
  EXPECT_EQ(graph.node(graph.OfKind(NodeKind::kNet)[0]).device, 10);
}

TEST(Merge, RanksOfAFileAreForgotten) {
  const Machine file = Named("dgx-h100");
  Machine detected = file;
  VisitPci(detected, [](CpuFact&, PciFact& pci) { pci.gpus.clear(); });
  detected.cpus[0].host_devices = {{0, 0}, {1, 1}};  // a job of host ranks
  const Machine merged = MergeDetected(file, detected);
  const MachineReading again = CheckMachineXml(FormatMachineXml(merged));
  EXPECT_TRUE(again.errors.empty()) << again.errors[0].sentence;
  EXPECT_EQ(TestGraph(merged).graph.Devices().size(), 2u);
}

TEST(Merge, DevicesOfAnotherMachineAreLeftOut) {
  const Machine file = Named("dgx-h100");
  Machine detected = Named("dgx-h100-7gpu");
  const Machine merged = MergeDetected(file, detected);
  EXPECT_EQ(TestGraph(merged).graph.Devices().size(), 7u);
  ASSERT_EQ(merged.guesses.size(), 1u);
  EXPECT_THAT(merged.guesses[0], HasSubstr("is not on this host"));
}

TEST(Merge, DevicesThatTheFileLacksKeepTheirPlace) {
  const Machine detected = Named("dgx-h100");
  const Machine file = Named("dgx-h100-7gpu");
  EXPECT_EQ(Text(TestGraph(MergeDetected(file, detected)).graph), Text(TestGraph(detected).graph));
}

std::vector<Machine> HostsOf(const Machine& machine) {
  std::map<uint64_t, Machine> hosts;
  for (const CpuFact& cpu : machine.cpus) hosts[*cpu.host_hash].cpus.push_back(cpu);
  std::vector<Machine> list;
  for (auto& [hash, host] : hosts) list.push_back(std::move(host));
  return list;
}

TEST(Fuse, HostsOfOneNvlinkDomain) {
  const Machine whole = Named("gb200-nvl72");
  std::vector<Machine> hosts = HostsOf(whole);
  ASSERT_EQ(hosts.size(), 18u);
  const Result<Machine> fused = Fuse(hosts);
  ASSERT_TRUE(fused.ok()) << fused.status().message();
  EXPECT_EQ(Text(TestGraph(*fused).graph), Text(TestGraph(whole).graph));
}

TEST(Fuse, RanksThatKnowOnlyTheirOwnGpu) {
  const Machine whole = HostsOf(Named("gb200-nvl72"))[0];
  std::vector<Machine> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(whole);
    VisitPci(ranks.back(), [&](CpuFact&, PciFact& pci) {
      for (GpuFact& gpu : pci.gpus) {
        if (gpu.dev == rank) continue;
        gpu.rank = kNotKnown;
        gpu.sm = kNotKnown;
        gpu.nvlinks.clear();
        gpu.c2c.clear();
      }
    });
  }
  const Result<Machine> fused = Fuse(ranks);
  ASSERT_TRUE(fused.ok()) << fused.status().message();
  EXPECT_EQ(Text(TestGraph(*fused).graph), Text(TestGraph(whole).graph));
}

TEST(Fuse, ContradictionsNameTheFirstDifference) {
  const Machine one = HostsOf(Named("gb200-nvl72"))[0];
  const auto sentence = [&](const std::function<void(Machine&)>& change) {
    Machine other = one;
    change(other);
    const Result<Machine> fused = Fuse(std::vector<Machine>{one, other});
    return fused.ok() ? std::string("agreed") : std::string(fused.status().message());
  };
  EXPECT_EQ(sentence([](Machine&) {}), "agreed");
  EXPECT_THAT(sentence([](Machine& m) { m.cpus[0].pci[0].link_width = 8; }),
              HasSubstr("the link's width of 0008:01:00.0 is \"1\" for one and \"8\" for another"));
  EXPECT_THAT(sentence([](Machine& m) { m.cpus[0].pci[0].gpus[0].rank = 50; }),
              HasSubstr("rank of the GPU at 0008:01:00.0"));
  EXPECT_THAT(sentence([](Machine& m) { m.cpus[0].pci[0].gpus[0].nvlinks[0].count = 2; }),
              HasSubstr("NVLinks"));
  EXPECT_THAT(sentence([](Machine& m) { m.cpus[0].host_hash.reset(); }), HasSubstr("host_hash"));
  EXPECT_THAT(sentence([](Machine& m) { m.version = 2; }), HasSubstr("versions 1 and 2"));
}

}  // namespace
}  // namespace tutti::topology
