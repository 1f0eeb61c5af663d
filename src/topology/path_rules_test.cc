#include "topology/path_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <set>
#include <string>

#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Settings Read(const Variables& variables) {
  const Result<Settings> settings = ReadSettings([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  EXPECT_TRUE(settings.ok()) << settings.status().message();
  return settings.ok() ? *settings : Settings();
}

// All kinds of paths between nodes of two kinds of a machine of the test data, as one text.
std::string Kinds(const std::string& name, const Variables& variables, NodeKind to) {
  const BuiltGraph built = TestGraph(TestMachine(TestDataPath("machines/" + name + ".xml")));
  const Paths paths = ComputePaths(built.graph, RulesOf(Read(variables)));
  std::set<std::string> kinds;
  for (const NodeIndex from : built.graph.OfKind(NodeKind::kGpu)) {
    for (const NodeIndex node : built.graph.OfKind(to)) {
      if (from != node) kinds.emplace(Name(paths.Between(from, node).kind));
    }
  }
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : " ") + kind;
  return text;
}

TEST(PathRules, PeerLevelsActOnKinds) {
  const auto kinds = [](const Variables& variables) {
    return Kinds("pub-3090x8", variables, NodeKind::kGpu);
  };
  // Two switches with four GPUs each, on two processors. What is not direct goes by a processor.
  EXPECT_EQ(kinds({}), "PIX SYS");
  EXPECT_EQ(kinds({{"NCCL_P2P_LEVEL", "NVL"}}), "PHB SYS");
  EXPECT_EQ(kinds({{"NCCL_P2P_LEVEL", "PIX"}}), "PIX SYS");
  EXPECT_EQ(kinds({{"NCCL_P2P_LEVEL", "0"}}), "PHB SYS");
  EXPECT_EQ(kinds({{"NCCL_P2P_LEVEL", "1"}}), "PIX SYS");
  EXPECT_EQ(kinds({{"NCCL_P2P_DISABLE", "1"}}), "PHB SYS");
  EXPECT_EQ(Kinds("dgx-h100", {{"NCCL_P2P_DISABLE", "1"}}, NodeKind::kGpu), "PHB SYS");
}

TEST(PathRules, NvlinkThroughAThirdGpu) {
  EXPECT_EQ(Kinds("dgx1-v100", {}, NodeKind::kGpu), "NVB NVL");
  EXPECT_EQ(Kinds("dgx1-v100", {{"NCCL_NVB_DISABLE", "1"}}, NodeKind::kGpu), "NVL SYS");
}

TEST(PathRules, RelaysToNics) {
  const auto kinds = [](const Variables& variables) {
    return Kinds("dgx-h100", variables, NodeKind::kNet);
  };
  EXPECT_EQ(kinds({}), "PIX PXN");
  EXPECT_EQ(kinds({{"NCCL_PXN_DISABLE", "1"}}), "PHB PIX SYS");
  // Without GPUDirect there is nothing to be gained by a relay.
  EXPECT_EQ(kinds({{"NCCL_NET_GDR_LEVEL", "LOC"}}), "PHB SYS");
  EXPECT_EQ(kinds({{"NCCL_NET_GDR_READ", "0"}}), "PHB PIX SYS");
  EXPECT_EQ(Kinds("gb200-tray", {}, NodeKind::kNet), "P2C PXN");
  EXPECT_EQ(Kinds("gb200-tray", {{"NCCL_PXN_C2C", "0"}}, NodeKind::kNet), "P2C SYS");
  // Level PXB forbids NICs to reach the GPU; the way by the processor, chip to chip, stays.
  EXPECT_EQ(Kinds("gb200-tray", {{"NCCL_NET_GDR_C2C", "0"}}, NodeKind::kNet), "P2C SYS");
}

TEST(PathRules, LevelsThatDoNotExistAreRefused) {
  const Result<Settings> settings = ReadSettings([](const char* name) -> const char* {
    return std::string_view(name) == "NCCL_P2P_LEVEL" ? "NEAR" : nullptr;
  });
  ASSERT_FALSE(settings.ok());
  EXPECT_THAT(std::string(settings.status().message()), HasSubstr("NCCL_P2P_LEVEL"));
}

TEST(KnownMachine, IsDetectedUnlessAFileSaysMore) {
  const Machine detected = TestMachine(TestDataPath("machines/dgx-h100.xml"));
  const std::string path = testing::TempDir() + "path_rules_test." + std::to_string(getpid());
  Settings settings;
  settings.topo_dump_file = path;
  settings.topo_dump_file_rank = 3;
  EXPECT_TRUE(DumpMachine(settings, detected, 2).ok());
  EXPECT_FALSE(ReadMachineFile(path).ok()) << "another rank wrote it";
  ASSERT_TRUE(DumpMachine(settings, detected, 3).ok());
  ASSERT_TRUE(ReadMachineFile(path).ok());

  settings.topo_file = path;
  Machine bare = detected;
  VisitPci(bare, [](CpuFact&, PciFact& pci) {
    pci.link_speed = "2.5 GT/s PCIe";
    for (GpuFact& gpu : pci.gpus) gpu.nvlinks.clear();
  });
  const Result<Machine> known = KnownMachine(settings, bare);
  ASSERT_TRUE(known.ok()) << known.status().message();
  EXPECT_EQ(FormatMachineXml(*known), FormatMachineXml(detected));
  std::remove(path.c_str());
  EXPECT_THAT(std::string(KnownMachine(settings, bare).status().message()),
              HasSubstr("NCCL_TOPO_FILE"));
  settings.topo_dump_file = "/nowhere/x.xml";
  EXPECT_THAT(std::string(DumpMachine(settings, detected, 3).message()),
              HasSubstr("NCCL_TOPO_DUMP_FILE"));
}

}  // namespace
}  // namespace tutti::topology
