#include "topology/detect.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "topology/paths.h"
#include "topology/sysfs.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

namespace fs = std::filesystem;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// A folder that looks like /sys, gone when the test is.
class FakeSysfs {
 public:
  FakeSysfs() {
    std::string form = testing::TempDir() + "sysfs_XXXXXX";
    root_ = mkdtemp(form.data());
    for (const char* folder : {"bus/pci/devices", "class/net", "class/infiniband", "module"}) {
      fs::create_directories(root_ / folder);
    }
  }
  ~FakeSysfs() { fs::remove_all(root_); }

  std::string root() const { return root_; }

  void Write(const fs::path& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }

  // A device below those of `above`, from the root port on.
  void AddPci(const std::vector<std::string>& above, const std::string& address,
              std::map<std::string, std::string> files) {
    fs::path path = "devices/pci0000:00";
    for (const std::string& bridge : above) path /= bridge;
    path /= address;
    files.emplace("max_link_speed", "32.0 GT/s PCIe");
    files.emplace("max_link_width", "16");
    files.emplace("numa_node", "0");
    for (const auto& [name, text] : files) Write(path / name, text);
    fs::create_symlink(root_ / path, root_ / "bus/pci/devices" / address);
  }

  // Something that the kernel finds at a PCI device, or at none when `address` is empty.
  void AddClass(const std::string& kind, const std::string& name, const std::string& address,
                const std::map<std::string, std::string>& files) {
    const fs::path path = fs::path("class") / kind / name;
    for (const auto& [file, text] : files) Write(path / file, text);
    if (!address.empty()) {
      fs::create_symlink(root_ / "bus/pci/devices" / address, root_ / path / "device");
    }
  }

 private:
  fs::path root_;
};

class FakeGpus : public GpuSource {
 public:
  explicit FakeGpus(std::vector<GpuSighting> gpus) : gpus_(std::move(gpus)) {}
  std::vector<GpuSighting> Find(std::vector<std::string>&) override { return gpus_; }

 private:
  std::vector<GpuSighting> gpus_;
};

CpuFact Cpu(int numa) {
  CpuFact cpu;
  cpu.numa = numa;
  cpu.arch = "x86_64";
  cpu.vendor = "GenuineIntel";
  cpu.family = 6;
  cpu.model = 143;
  return cpu;
}

const std::map<std::string, std::string> kBridge = {{"class", "0x060400"}, {"vendor", "0x1000"}};
const std::map<std::string, std::string> kGpuFiles = {{"class", "0x030200"}, {"vendor", "0x10de"}};

GpuSighting Gpu(int dev, const std::string& address) {
  GpuSighting gpu;
  gpu.bus_id = *ParseBusId(address);
  gpu.fact.dev = dev;
  gpu.fact.sm = 90;
  gpu.fact.gdr = 1;
  gpu.fact.nvlinks.push_back({*ParseBusId("fffffff:ff:ff.0"), kClassNvSwitch, 18, false});
  return gpu;
}

// A root port, a switch of two bridges' depth with two legs, a GPU on one and an RDMA NIC on the
// other.
void AddGpuAndNic(FakeSysfs& sysfs) {
  sysfs.AddPci({}, "0000:00:01.0", kBridge);
  sysfs.AddPci({"0000:00:01.0"}, "0000:01:00.0", kBridge);
  const std::vector<std::string> port = {"0000:00:01.0", "0000:01:00.0"};
  sysfs.AddPci(port, "0000:02:00.0", kBridge);
  sysfs.AddPci(port, "0000:02:01.0", {{"class", "0x060400"}, {"max_link_width", "8"}});
  sysfs.AddPci({port[0], port[1], "0000:02:00.0"}, "0000:03:00.0", kGpuFiles);
  sysfs.AddPci({port[0], port[1], "0000:02:01.0"}, "0000:04:00.0",
               {{"class", "0x020700"}, {"vendor", "0x15b3"}});
  sysfs.AddClass("infiniband", "mlx5_0", "0000:04:00.0",
                 {{"ports/1/state", "4: ACTIVE"},
                  {"ports/1/rate", "400 Gb/sec (4X NDR)"},
                  {"ports/2/state", "1: DOWN"},
                  {"node_guid", "b83f:d203:00a6:1b58"}});
}

TEST(Detect, PutsDevicesBelowTheirSwitch) {
  FakeSysfs sysfs;
  AddGpuAndNic(sysfs);
  sysfs.Write("module/nvidia_peermem/version", "1.0");
  FakeGpus gpus({Gpu(0, "0000:03:00.0")});
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.cpus = {Cpu(0), Cpu(1)};
  options.gpus = &gpus;
  options.host_hash = 7;
  options.gpu_ranks = {{*ParseBusId("0000:03:00.0"), 5}};
  const Machine machine = Detect(options);
  EXPECT_THAT(machine.guesses, IsEmpty());
  ASSERT_EQ(machine.cpus.size(), 2u);
  EXPECT_EQ(machine.cpus[0].host_hash, 7u);
  // The root port is the processor's, and the downstream ports are the switch's.
  ASSERT_EQ(machine.cpus[0].pci.size(), 1u);
  const PciFact& pci_switch = machine.cpus[0].pci[0];
  EXPECT_EQ(FormatBusId(pci_switch.bus_id), "0000:01:00.0");
  ASSERT_EQ(pci_switch.children.size(), 2u);
  EXPECT_EQ(pci_switch.children[0].gpus.at(0).rank, 5);
  EXPECT_EQ(pci_switch.children[0].link_speed, "32.0 GT/s PCIe");
  EXPECT_EQ(pci_switch.children[0].link_width, 16);
  EXPECT_EQ(pci_switch.children[1].link_width, 8) << "the port above is narrower";
  const NetFact& net = pci_switch.children[1].nics.at(0).nets.at(0);
  EXPECT_EQ(pci_switch.children[1].nics[0].nets.size(), 1u) << "the other port is down";
  EXPECT_EQ(net.name, "mlx5_0");
  EXPECT_EQ(net.speed_mbps, 400000);
  EXPECT_EQ(net.guid, 0xb83fd20300a61b58u);
  EXPECT_EQ(net.gdr, 1);

  const Graph graph = TestGraph(machine).graph;
  const Paths paths = ComputePaths(graph, {});
  const Path& path =
      paths.Between(graph.OfKind(NodeKind::kGpu)[0], graph.OfKind(NodeKind::kNet)[0]);
  EXPECT_EQ(path.kind, PathKind::kPix);
  EXPECT_EQ(path.bandwidth_gbps, 24);
}

TEST(Detect, InterfacesThatLeadSomewhere) {
  FakeSysfs sysfs;
  sysfs.AddPci({"0000:00:02.0"}, "0000:05:00.0", {{"class", "0x020000"}, {"numa_node", "1"}});
  sysfs.AddPci({"0000:00:02.0"}, "0000:05:00.1", {{"class", "0x020000"}, {"numa_node", "1"}});
  sysfs.AddClass("net", "eth10", "0000:05:00.0", {{"flags", "0x1003"}, {"speed", "25000"}});
  sysfs.AddClass("net", "eth9", "0000:05:00.1", {{"flags", "0x1003"}, {"speed", "-1"}});
  sysfs.AddClass("net", "eth1", "0000:05:00.1", {{"flags", "0x1002"}});
  sysfs.AddClass("net", "lo", "", {{"flags", "0x9"}});
  sysfs.AddClass("net", "docker0", "", {{"flags", "0x1003"}});
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.cpus = {Cpu(0), Cpu(1)};
  const Graph graph = TestGraph(Detect(options)).graph;
  const auto nets = graph.OfKind(NodeKind::kNet);
  ASSERT_EQ(nets.size(), 2u);
  EXPECT_EQ(graph.node(nets[0]).name, "eth9");
  EXPECT_EQ(graph.node(nets[0]).net_bandwidth_gbps, 1.25) << "10 Gbit/s where it is not known";
  EXPECT_EQ(graph.node(nets[1]).name, "eth10");
  EXPECT_EQ(graph.node(nets[1]).net_bandwidth_gbps, 3.125);
  EXPECT_EQ(graph.node(nets[1]).numa, 1);
  EXPECT_EQ(graph.OfKind(NodeKind::kNic).size(), 1u) << "two functions are one NIC";

  options.ports = {{"docker0"}, {"eth10"}};
  const Graph chosen = TestGraph(Detect(options)).graph;
  ASSERT_EQ(chosen.OfKind(NodeKind::kNet).size(), 2u);
  EXPECT_EQ(chosen.node(chosen.OfKind(NodeKind::kNet)[0]).name, "docker0");
}

// A network over verbs or a plugin tells of ports that are no interfaces.
TEST(Detect, PortsStandWhereTheirNetworkSaysTheyAre) {
  FakeSysfs sysfs;
  sysfs.AddPci({"0000:00:02.0"}, "0000:05:00.0", {{"class", "0x020700"}, {"numa_node", "1"}});
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.cpus = {Cpu(0), Cpu(1)};
  options.network = NetworkChoice::kSockets;
  const std::string folder = fs::canonical(sysfs.root() + "/bus/pci/devices/0000:05:00.0");
  options.ports = {{"mlx5_0", {folder}, 200'000, 1, 0xabc, true},
                   {"mlx5_1", {"/elsewhere"}, 100'000}};
  const Graph graph = TestGraph(Detect(options)).graph;
  const auto nets = graph.OfKind(NodeKind::kNet);
  ASSERT_EQ(nets.size(), 2u);
  const Node& near = graph.node(nets[0]);
  EXPECT_EQ(near.name, "mlx5_0");
  EXPECT_EQ(near.numa, 1);
  EXPECT_EQ(near.net_bandwidth_gbps, 25);
  EXPECT_EQ(near.net_guid, 0xabcu);
  EXPECT_TRUE(near.gpu_direct);
  EXPECT_EQ(graph.node(nets[1]).numa, 0) << "its place is not known";
  EXPECT_FALSE(graph.node(nets[1]).gpu_direct);
}

// Below one switch are two others, each with a GPU and a NIC of two functions; a third NIC has a
// root port of its own.
class MergedPortsTest : public testing::Test {
 protected:
  MergedPortsTest() {
    const std::string root = "0000:00:01.0";
    const std::string top = "0000:01:00.0";
    sysfs_.AddPci({}, root, kBridge);
    sysfs_.AddPci({root}, top, kBridge);
    for (int i = 0; i < 2; ++i) {
      const std::string leg = fmt::format("0000:02:0{}.0", i);
      const std::string upper = fmt::format("0000:{}0:00.0", i + 1);
      sysfs_.AddPci({root, top}, leg, kBridge);
      sysfs_.AddPci({root, top, leg}, upper, kBridge);
      const std::vector<std::string> above = {root, top, leg, upper};
      AddLeaf(above, fmt::format("0000:{}1:00.0", i + 1), fmt::format("0000:{}2:00.0", i + 1),
              kGpuFiles);
      AddLeaf(above, fmt::format("0000:{}1:01.0", i + 1), fmt::format("0000:{}3:00.0", i + 1),
              kNic);
      sysfs_.AddPci({root, top, leg, upper, fmt::format("0000:{}1:01.0", i + 1)},
                    fmt::format("0000:{}3:00.1", i + 1), kNic);
    }
    sysfs_.AddPci({"0000:00:02.0"}, "0000:30:00.0", kNic);
  }
  // Returns the kinds of the paths from the GPUs to a port that is made of these devices.
  std::vector<PathKind> PathsTo(const std::vector<std::string>& devices) {
    DetectOptions options;
    options.sysfs = sysfs_.root();
    options.cpus = {Cpu(0), Cpu(1)};
    options.network = NetworkChoice::kSockets;
    FakeGpus gpus({Gpu(0, "0000:12:00.0"), Gpu(1, "0000:22:00.0")});
    options.gpus = &gpus;
    FoundPort& port = options.ports.emplace_back();
    port.name = "merged";
    port.speed_mbps = 200'000;
    port.gpu_memory = true;
    for (const std::string& device : devices)
      port.pci_paths.push_back(fs::canonical(sysfs_.root() + "/bus/pci/devices/" + device));
    const Graph graph = TestGraph(Detect(options)).graph;
    const Paths paths = ComputePaths(graph, {});
    std::vector<PathKind> kinds;
    for (const NodeIndex gpu : graph.Devices())
      kinds.push_back(paths.Between(gpu, graph.OfKind(NodeKind::kNet)[0]).kind);
    return kinds;
  }

 private:
  void AddLeaf(std::vector<std::string> above, const std::string& port, const std::string& device,
               const std::map<std::string, std::string>& files) {
    sysfs_.AddPci(above, port, kBridge);
    above.push_back(port);
    sysfs_.AddPci(above, device, files);
  }
  const std::map<std::string, std::string> kNic = {{"class", "0x020700"}, {"vendor", "0x15b3"}};
  FakeSysfs sysfs_;
};

TEST_F(MergedPortsTest, StandBelowWhatTheyHaveInCommon) {
  using testing::ElementsAre;
  EXPECT_THAT(PathsTo({"0000:13:00.0"}), ElementsAre(PathKind::kPix, PathKind::kPxb));
  EXPECT_THAT(PathsTo({"0000:13:00.0", "0000:13:00.1"}),
              ElementsAre(PathKind::kPix, PathKind::kPxb));
  EXPECT_THAT(PathsTo({"0000:23:00.0", "0000:13:00.0"}),
              ElementsAre(PathKind::kPxb, PathKind::kPxb));
  EXPECT_THAT(PathsTo({"0000:13:00.0", "0000:13:00.1", "0000:23:00.0"}),
              ElementsAre(PathKind::kPxb, PathKind::kPxb));
  EXPECT_THAT(PathsTo({"0000:13:00.0", "0000:30:00.0"}),
              ElementsAre(PathKind::kPhb, PathKind::kPhb));
}

TEST(Detect, BondsStandWhereTheirFirstNicIs) {
  FakeSysfs sysfs;
  sysfs.AddPci({"0000:00:02.0"}, "0000:05:00.0", {{"class", "0x020000"}, {"numa_node", "1"}});
  sysfs.AddClass("net", "eth0", "0000:05:00.0",
                 {{"flags", "0x1803"}, {"bonding_slave/state", "active"}});
  sysfs.AddClass("net", "bond0", "", {{"flags", "0x1403"}, {"speed", "50000"}});
  fs::create_symlink(fs::path(sysfs.root()) / "class/net/eth0",
                     fs::path(sysfs.root()) / "class/net/bond0/lower_eth0");
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.cpus = {Cpu(0), Cpu(1)};
  const Graph graph = TestGraph(Detect(options)).graph;
  ASSERT_EQ(graph.OfKind(NodeKind::kNet).size(), 1u);
  EXPECT_EQ(graph.node(graph.OfKind(NodeKind::kNet)[0]).name, "bond0");
  EXPECT_EQ(graph.node(graph.OfKind(NodeKind::kNet)[0]).numa, 1);
}

TEST(Detect, ContainersShowWhatTheyHave) {
  FakeSysfs sysfs;
  sysfs.AddClass("net", "lo", "", {{"flags", "0x9"}});
  sysfs.AddClass("net", "eth0", "", {{"flags", "0x1003"}, {"speed", "10000"}});
  FakeGpus gpus({Gpu(0, "0000:03:00.0"), Gpu(1, "0000:04:00.0")});
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.cpus = {Cpu(0), Cpu(1)};
  options.gpus = &gpus;
  const Machine machine = Detect(options);
  EXPECT_THAT(
      machine.guesses,
      Contains(HasSubstr("The place of the GPU at 0000:03:00.0 in the PCI tree is hidden")));
  EXPECT_THAT(machine.guesses, Contains(HasSubstr("The NUMA node of 0000:04:00.0 is not known")));
  EXPECT_THAT(machine.guesses, Contains(HasSubstr("The place of eth0 is not known")));
  const BuiltGraph built = TestGraph(machine);
  EXPECT_THAT(built.remarks, Contains(HasSubstr("speed of the PCI link of 0000:03:00.0")));
  const Paths paths = ComputePaths(built.graph, {});
  const auto devices = built.graph.Devices();
  EXPECT_EQ(paths.Between(devices[0], devices[1]).kind, PathKind::kNvlink);
  EXPECT_EQ(paths.Between(devices[0], built.graph.OfKind(NodeKind::kNet)[0]).kind, PathKind::kPhb);
}

TEST(Detect, HostRanksSitOnTheirProcessor) {
  FakeSysfs sysfs;
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.cpus = {Cpu(0), Cpu(1)};
  options.host_ranks = {{0, 10, 1}, {1, 11, 1}, {2, 12, 0}, {3, 13, kNotKnown}};
  const Machine machine = Detect(options);
  EXPECT_THAT(machine.guesses, Contains(HasSubstr("NUMA node of rank 13 is not known")));
  EXPECT_THAT(machine.guesses, Contains(HasSubstr("No network interface")));
  const Graph graph = TestGraph(machine).graph;
  const Paths paths = ComputePaths(graph, {});
  std::map<int, NodeIndex> at;
  for (const NodeIndex device : graph.Devices()) at[graph.node(device).rank] = device;
  ASSERT_EQ(at.size(), 4u);
  EXPECT_EQ(graph.node(at[10]).kind, NodeKind::kHostDevice);
  EXPECT_EQ(graph.node(at[10]).numa, 1);
  EXPECT_EQ(paths.Between(at[10], at[11]).kind, PathKind::kLocal);
  EXPECT_EQ(paths.Between(at[10], at[12]).kind, PathKind::kSys);
  EXPECT_EQ(paths.Between(at[10], at[12]).bandwidth_gbps, 22);
  EXPECT_EQ(paths.Between(at[12], at[13]).kind, PathKind::kLocal);
}

TEST(Detect, GpusWithoutADriverAreMentioned) {
  FakeSysfs sysfs;
  sysfs.AddPci({}, "0000:00:05.0", kGpuFiles);
  FakeGpus none({});
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.gpus = &none;
  const Machine machine = Detect(options);
  EXPECT_THAT(machine.guesses,
              Contains(HasSubstr("There is a GPU at 0000:00:05.0, but no driver")));
  EXPECT_THAT(machine.guesses, Contains(HasSubstr("The processors are not known")));
}

// Two MI300 as the kernel's driver shows them, beside the processor, which is a node as well.
TEST(Detect, AmdGpusAsTheirDriverShowsThem) {
  FakeSysfs sysfs;
  const std::string nodes = "class/kfd/kfd/topology/nodes/";
  sysfs.Write(nodes + "0/properties", "cpu_cores_count 96\nsimd_count 0");
  const char* const addresses[] = {"0000:0c:00.0", "0000:9f:01.2"};
  const char* const places[] = {"3072", "40714"};  // 0x0c00, 0x9f0a
  for (int gpu = 0; gpu < 2; ++gpu) {
    sysfs.AddPci({}, addresses[gpu], {{"class", "0x120000"}, {"vendor", "0x1002"}});
    const std::string node = nodes + std::to_string(gpu + 1);
    sysfs.Write(node + "/properties",
                fmt::format("cpu_cores_count 0\nsimd_count 1216\nsimd_per_cu 4\ndomain 0\n"
                            "gfx_target_version 90402\nlocation_id {}",
                            places[gpu]));
    sysfs.Write(node + "/io_links/0/properties", "type 11\nnode_to 0\nmax_bandwidth 64000");
    sysfs.Write(node + "/io_links/2/properties", fmt::format("type 2\nnode_to {}", 2 - gpu));
    sysfs.Write(node + "/io_links/1/properties",
                fmt::format("type 11\nnode_to {}\nmin_bandwidth {}\nmax_bandwidth 128000", 2 - gpu,
                            gpu == 0 ? 64000 : 0));
  }
  sysfs.Write(nodes + "3/properties", "");  // hidden by a container
  sysfs.Write("kernel/mm/memory_peers/amdkfd/version", "2.0");
  const auto gpus = MakeAmdSource(sysfs.root());
  DetectOptions options;
  options.sysfs = sysfs.root();
  options.cpus = {Cpu(0)};
  options.gpus = gpus.get();
  const Machine machine = Detect(options);
  std::vector<std::pair<BusId, GpuFact>> found;
  VisitPci(machine, [&](const CpuFact&, const PciFact& pci) {
    for (const GpuFact& gpu : pci.gpus) found.emplace_back(pci.bus_id, gpu);
  });
  ASSERT_EQ(found.size(), 2u);
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    EXPECT_EQ(FormatBusId(found[gpu].first), addresses[gpu]);
    EXPECT_EQ(found[gpu].second.gcn, "gfx942");
    EXPECT_EQ(found[gpu].second.sm, 304);
    EXPECT_EQ(found[gpu].second.gdr, 1);
    ASSERT_EQ(found[gpu].second.nvlinks.size(), 1u) << "not to the processor, and no PCI";
    EXPECT_TRUE(found[gpu].second.nvlinks[0].xgmi);
    EXPECT_EQ(FormatBusId(found[gpu].second.nvlinks[0].target), addresses[1 - gpu]);
    EXPECT_EQ(found[gpu].second.nvlinks[0].count, gpu == 0 ? 2 : 1);
  }
  EXPECT_THAT(machine.guesses, Contains(HasSubstr("xGMI links between GPU 1 and 0000:0c:00.0")));
  EXPECT_TRUE(BuildGraph(machine).ok());
}

TEST(Detect, VirtualFunctionsHaveTheLinkOfTheirNic) {
  FakeSysfs sysfs;
  sysfs.AddPci({}, "0000:06:00.0", {{"max_link_speed", "16.0 GT/s PCIe"}});
  sysfs.AddPci({}, "0000:06:00.2", {{"max_link_speed", "Unknown"}, {"max_link_width", "255"}});
  EXPECT_EQ(Sysfs(sysfs.root()).ReadPci(*ParseBusId("0000:06:00.2")).link_width, 0);
  fs::create_symlink(fs::path(sysfs.root()) / "bus/pci/devices/0000:06:00.0",
                     fs::path(sysfs.root()) / "bus/pci/devices/0000:06:00.2/physfn");
  const PciFact pci = Sysfs(sysfs.root()).ReadPci(*ParseBusId("0000:06:00.2"));
  EXPECT_EQ(pci.link_speed, "16.0 GT/s PCIe");
  EXPECT_EQ(pci.link_width, 16);
}

TEST(Sysfs, NumbersInNamesAreNumbers) {
  EXPECT_TRUE(NaturalLess("mlx5_2", "mlx5_10"));
  EXPECT_FALSE(NaturalLess("mlx5_10", "mlx5_2"));
  EXPECT_TRUE(NaturalLess("eth", "eth0"));
  EXPECT_TRUE(NaturalLess("a00", "b"));
  EXPECT_FALSE(NaturalLess("x0", "x00"));
  EXPECT_FALSE(NaturalLess("x", "x"));
}

TEST(Processors, AreNumaNodesWithCores) {
  FakeSysfs sysfs;
  sysfs.Write("devices/system/node/node0/cpulist", "0-19");
  sysfs.Write("devices/system/node/node2/cpulist", "");  // memory only
  sysfs.Write("devices/system/node/node10/cpulist", "32,40-41");
  sysfs.Write("devices/system/node/node1/cpulist", "20-39");
  sysfs.Write("devices/system/node/online", "0-2,10");
  sysfs.Write("devices/system/cpu/online", "0-41");
  sysfs.Write("proc/cpuinfo",
              "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
              "model name\t: a name\npower management:\n\nprocessor\t: 1\nmodel\t\t: 1");
  const std::vector<CpuFact> cpus = FindProcessors(sysfs.root(), sysfs.root() + "/proc");
  ASSERT_EQ(cpus.size(), 3u);
  EXPECT_EQ(cpus[0].numa, 0);
  EXPECT_EQ(cpus[0].affinity, "000fffff");
  EXPECT_EQ(cpus[1].numa, 1);
  EXPECT_EQ(cpus[1].affinity, "000000ff,fff00000");
  EXPECT_EQ(cpus[2].numa, 10);
  EXPECT_EQ(cpus[2].affinity, "00000301,00000000");
  for (const CpuFact& cpu : cpus) {
    EXPECT_EQ(cpu.vendor, "GenuineIntel");
    EXPECT_EQ(cpu.family, 6);
    EXPECT_EQ(cpu.model, 207);
    EXPECT_FALSE(cpu.arch.empty());
  }
  EXPECT_EQ(ArchitectureName("aarch64"), "arm64");
  EXPECT_EQ(ArchitectureName("x86_64"), "x86_64");
}

TEST(Processors, AreOneWhereNumaIsHidden) {
  FakeSysfs sysfs;
  EXPECT_THAT(FindProcessors(sysfs.root(), sysfs.root()), IsEmpty());
  sysfs.Write("devices/system/cpu/online", "0-2");
  const std::vector<CpuFact> cpus = FindProcessors(sysfs.root(), sysfs.root());
  ASSERT_EQ(cpus.size(), 1u);
  EXPECT_EQ(cpus[0].numa, 0);
  EXPECT_EQ(cpus[0].affinity, "00000007");
  EXPECT_EQ(cpus[0].model, kNotKnown);
}

TEST(Detect, RanksAreAddedOnlyWhereThereAreNone) {
  Machine machine;
  machine.cpus.resize(2);
  AddMissingRanks(machine);
  EXPECT_EQ(machine.cpus[1].host_devices.at(0).rank, 1);
  AddMissingRanks(machine);
  EXPECT_EQ(machine.cpus[0].host_devices.size(), 1u);
  EXPECT_EQ(machine.guesses.size(), 1u);
  Machine gpus = TestMachine(TestDataPath("machines/dgx-h100.xml"));
  AddMissingRanks(gpus);
  EXPECT_TRUE(gpus.cpus[0].host_devices.empty());
}

// Whatever this host is, it has a processor, and its description can be written, read and built.
TEST(Detect, ThisHost) {
  Machine machine = DetectThisHost(Settings());
  AddMissingRanks(machine);
  ASSERT_FALSE(machine.cpus.empty());
  EXPECT_FALSE(machine.cpus[0].affinity.empty());
  EXPECT_TRUE(machine.cpus[0].host_hash.has_value());
  const Result<Machine> again = ParseMachineXml(FormatMachineXml(machine), "dump");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_FALSE(TestGraph(*again).graph.Devices().empty());
}

}  // namespace
}  // namespace tutti::topology
