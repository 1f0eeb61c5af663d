#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

using testing::HasSubstr;

// A file with one of everything; `pci` is put where the attributes of its first device stand.
std::string Sample(const std::string& pci = R"(link_speed="16.0 GT/s PCIe" link_width="16")") {
  return R"(<system version="1">
  <cpu host_hash="0xff" numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <host dev="0" rank="7"/>
    <pci busid="0000:1b:00.0" class="0x060400" vendor="0x1000" device="0xc010" )" +
         pci + R"(>
      <pci busid="0000:1c:00.0" class="0x030200" vendor="0x10de" link_speed="" link_width="0">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:1c:01.0" count="4" tclass="0x030200"/>
          <nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/>
          <c2c bw="44712" count="10"/>
        </gpu>
      </pci>
      <pci busid="0000:1c:01.0" class="0x030200" link_speed="5 GT/s" link_width="8">
        <gpu dev="1" sm="90" rank="1" gdr="0"/>
      </pci>
      <pci busid="0000:1d:00.0" class="0x020700" link_speed="32 GT/s" link_width="16">
        <nic>
          <net name="mlx&amp;0" dev="0" latency="1.5" speed="200000" port="1" guid="0xabc" maxconn="9" gdr="1" coll="0"/>
          <net name="part" net="0"/>
        </nic>
      </pci>
      <pcilink target="0000:99:00.0"/>
    </pci>
    <nic>
      <net name="eth0" dev="1" speed="-1" guid="0x0"/>
    </nic>
  </cpu>
</system>
)";
}

TEST(MachineXml, ReadsEveryField) {
  const MachineReading reading = CheckMachineXml(Sample());
  ASSERT_TRUE(reading.errors.empty()) << reading.errors[0].sentence;
  ASSERT_EQ(reading.machine.cpus.size(), 1u);
  const CpuFact& cpu = reading.machine.cpus[0];
  EXPECT_EQ(cpu.host_hash, 0xffu);
  EXPECT_EQ(cpu.numa, 0);
  EXPECT_EQ(cpu.vendor, "GenuineIntel");
  EXPECT_EQ(cpu.model, 85);
  ASSERT_EQ(cpu.host_devices.size(), 1u);
  EXPECT_EQ(cpu.host_devices[0].rank, 7);
  ASSERT_EQ(cpu.pci.size(), 1u);
  const PciFact& bridge = cpu.pci[0];
  EXPECT_EQ(FormatBusId(bridge.bus_id), "0000:1b:00.0");
  EXPECT_EQ(bridge.device, 0xc010u);
  EXPECT_EQ(bridge.link_width, 16);
  ASSERT_EQ(bridge.peers.size(), 1u);
  ASSERT_EQ(bridge.children.size(), 3u);
  const GpuFact& gpu = bridge.children[0].gpus.at(0);
  EXPECT_EQ(gpu.sm, 90);
  ASSERT_EQ(gpu.nvlinks.size(), 2u);
  EXPECT_EQ(FormatBusId(gpu.nvlinks[1].target), "fffffff:ff:ff.0");
  EXPECT_EQ(gpu.nvlinks[1].count, 18);
  EXPECT_EQ(gpu.c2c.at(0).bandwidth_mbs, 44712);
  const NetFact& net = bridge.children[2].nics.at(0).nets.at(0);
  EXPECT_EQ(net.name, "mlx&0");
  EXPECT_EQ(net.speed_mbps, 200000);
  EXPECT_EQ(net.latency_us, 1.5);
  EXPECT_EQ(net.guid, 0xabcu);
  EXPECT_FALSE(bridge.children[2].nics[0].nets.at(1).usable);
  EXPECT_EQ(cpu.nics.at(0).nets.at(0).name, "eth0");
}

TEST(MachineXml, ReadsAmdFiles) {
  const Machine machine = TestMachine(TestDataPath("amd/topo_8p_940.xml"));
  EXPECT_EQ(machine.version, 2);
  const BuiltGraph built = TestGraph(machine);
  EXPECT_EQ(built.graph.OfKind(NodeKind::kGpu).size(), 8u);
  for (const std::string& path : TestMachines("amd")) {
    EXPECT_FALSE(TestGraph(TestMachine(path)).graph.Devices().empty()) << path;
  }
}

TEST(MachineXml, WritesWhatItReads) {
  std::vector<std::string> texts = {Sample()};
  for (const char* folder : {"machines", "amd"}) {
    for (const std::string& path : TestMachines(folder)) texts.push_back(*ReadXmlText(path));
  }
  for (const std::string& text : texts) {
    const Result<Machine> machine = ParseMachineXml(text, "first");
    ASSERT_TRUE(machine.ok());
    const std::string written = FormatMachineXml(*machine);
    const Result<Machine> again = ParseMachineXml(written, "again");
    ASSERT_TRUE(again.ok()) << again.status().message() << written;
    EXPECT_EQ(FormatMachineXml(*again), written);
    const Graph before = TestGraph(*machine).graph;
    const Graph after = TestGraph(*again).graph;
    ASSERT_EQ(before.nodes().size(), after.nodes().size());
    ASSERT_EQ(before.links().size(), after.links().size());
    for (size_t i = 0; i < before.links().size(); ++i) {
      EXPECT_EQ(before.links()[i].to, after.links()[i].to);
      EXPECT_EQ(before.links()[i].bandwidth_gbps, after.links()[i].bandwidth_gbps);
    }
  }
}

TEST(MachineXml, WritesGuessesAsCommentsThatEndWhereTheyShould) {
  Machine machine = *ParseMachineXml(Sample(), "sample");
  machine.guesses = {"a --> b -"};
  const std::string written = FormatMachineXml(machine);
  EXPECT_THAT(written, HasSubstr("guessed: a"));
  EXPECT_TRUE(ParseMachineXml(written, "written").ok());
}

TEST(MachineXml, WritesFiles) {
  const Machine machine = *ParseMachineXml(Sample(), "sample");
  const std::string path = testing::TempDir() + "machine_xml_test." + std::to_string(getpid());
  ASSERT_TRUE(WriteXmlText(FormatMachineXml(machine), path).ok());
  const Result<Machine> again = ReadMachineFile(path);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(FormatMachineXml(*again), FormatMachineXml(machine));
  std::remove(path.c_str());
  const Status nowhere = WriteXmlText(FormatMachineXml(machine), "/nowhere/at/all.xml");
  EXPECT_THAT(nowhere.message(), HasSubstr("/nowhere/at/all.xml"));
  EXPECT_THAT(ReadMachineFile("/nowhere/at/all.xml").status().message(), HasSubstr("ENOENT"));
}

struct Broken {
  std::string text;
  std::string sentence;  // a part of the first error, with its place
};

TEST(MachineXml, SaysWhereAndWhatIsWrong) {
  const std::string cpu = "<system version=\"1\">\n <cpu numaid=\"0\">\n";
  const std::string end = "\n </cpu>\n</system>";
  const Broken cases[] = {
      {"", "f:1:1: this is no XML"},
      {"hello", "f:1:6: this is no XML"},
      {"<graphs/>", "f:1:1: <graphs> at the top; a <system> was expected"},
      {"<system version=\"1\"/>", "f:1:1: <system> has no <cpu>"},
      {"<system version=\"3\"><cpu numaid=\"0\"/></system>", "a number from 1 to 2 was expected"},
      {"<system>\n<cpu/></system>", "f:2:1: <cpu> lacks numaid"},
      {cpu + "<pci busid=\"0000:00:00\"/>" + end,
       "f:3:1: busid=\"0000:00:00\" of <pci>: an address such as 0000:1b:00.0 was expected"},
      {cpu + "  <pci class=\"0x060400\"/>" + end, "f:3:3: <pci> lacks busid"},
      {cpu + "<pci busid=\"0000:01:00.0\" link_width=\"99999999999999999999\"/>" + end,
       "f:3:1: link_width=\"99999999999999999999\" of <pci>: a number from -1 to 1024"},
      {cpu + "<pci busid=\"0000:01:00.0\" class=\"0xzz\"/>" + end, "hexadecimal"},
      {cpu + "<pci busid=\"0000:01:00.0\"/>\n<pci busid=\"0000:01:00.0\"/>" + end,
       "f:4:1: a second device at 0000:01:00.0"},
      {cpu + end.substr(0, 8) + "\n<cpu numaid=\"0\"/></system>",
       "f:5:1: a second <cpu> with numaid 0"},
      {cpu + "<host rank=\"3\"/><host rank=\"3\"/>" + end, "f:3:17: rank 3 a second time"},
      {cpu + "<nic><net latency=\"nan\"/></nic>" + end, "latency=\"nan\""},
      {cpu +
           "<pci busid=\"0000:01:00.0\"><gpu><nvlink count=\"5000000000\" "
           "target=\"0000:01:01.0\"/></gpu></pci>" +
           end,
       "count=\"5000000000\" of <nvlink>: a number from 0 to 1000"},
      {cpu + "<pci busid=\"0000:01:00.0\"", "this is no XML"},
      {cpu + "<pci busid=\"0000:01:00.0\" vendor=\"\x01\x1b[31m\"/>" + end, "vendor=\"??[31m\""},
  };
  for (const Broken& broken : cases) {
    const Result<Machine> machine = ParseMachineXml(broken.text, "f");
    ASSERT_FALSE(machine.ok()) << broken.text;
    EXPECT_EQ(machine.status().code(), Code::kInvalidUsage);
    EXPECT_THAT(std::string(machine.status().message()), HasSubstr(broken.sentence));
  }
}

TEST(MachineXml, SaysAllThatIsWrongUpToABound) {
  std::string text = "<system><cpu numaid=\"0\">\n";
  for (int i = 0; i < 1000; ++i) text += "<pci busid=\"x\"/>\n";
  const MachineReading reading = CheckMachineXml(text + "</cpu></system>");
  ASSERT_EQ(reading.errors.size(), kMostErrors);
  EXPECT_EQ(reading.errors[0].line, 2u);
  EXPECT_EQ(reading.errors.back().column, 1u);
}

TEST(MachineXml, PassesOverWhatItDoesNotKnowWithARemark) {
  const MachineReading reading = CheckMachineXml(
      "<system><cpu numaid=\"0\" color=\"red\"><toaster><pci/></toaster>\n"
      "<pci busid=\"0000:01:00.0\"><gpu dev=\"0\"><nvlink target=\"0000:01:00.0\" count=\"2\"/>"
      "<nvlink target=\"0000:07:00.0\" count=\"2\"/></gpu></pci></cpu></system>");
  EXPECT_TRUE(reading.errors.empty());
  ASSERT_EQ(reading.remarks.size(), 4u);
  EXPECT_THAT(reading.remarks[0].sentence, HasSubstr("color of <cpu>"));
  EXPECT_THAT(reading.remarks[1].sentence, HasSubstr("<toaster> in <cpu> is passed over"));
  EXPECT_THAT(reading.remarks[2].sentence, HasSubstr("linked to itself"));
  EXPECT_THAT(reading.remarks[3].sentence, HasSubstr("0000:07:00.0, which is not in the file"));
}

std::string Nested(size_t depth) {
  std::string text = "<system><cpu numaid=\"0\">";
  for (size_t i = 0; i < depth; ++i) {
    text += fmt::format("<pci busid=\"{}\">", FormatBusId(i << 4));
  }
  for (size_t i = 0; i < depth; ++i) text += "</pci>";
  return text + "</cpu></system>";
}

std::string Wide(size_t devices) {
  std::string text = "<system version=\"1\"><cpu numaid=\"0\" arch=\"x86_64\">\n";
  for (size_t i = 0; i < devices; ++i) {
    text += fmt::format(
        "<pci busid=\"{}\" class=\"0x060400\" vendor=\"0x1000\" device=\"0xc010\" "
        "link_speed=\"16.0 GT/s PCIe\" link_width=\"16\"/>\n",
        FormatBusId(i << 4));
  }
  return text + "</cpu></system>";
}

TEST(MachineXml, RefusesHostileFilesSoon) {
  std::string million = "<system>";
  for (int i = 0; i < 1'000'000; ++i) million += "<a/>";
  million += "</system>";
  std::string attributes = "<system ";
  for (int i = 0; i < 4'100'000; ++i) attributes += "a=\"\"";
  const Broken cases[] = {
      {Nested(kDeepestElement + 1), "devices nested more than 64 deep"},
      {Nested(200'000), "devices nested more than 64 deep"},
      {million, "more than 300000 elements"},
      {attributes + "/>", "more than 4000000 attributes"},
      {std::string(kLargestXml + 1, ' '), "at most 33554432 were expected"},
      {std::string(1 << 20, '<'), "elements"},
      {"<!DOCTYPE a [<!ENTITY b \"cc\">]><system><cpu numaid=\"&b;\"/></system>", "numaid=\"&b;\""},
  };
  for (const Broken& broken : cases) {
    const auto begin = std::chrono::steady_clock::now();
    const Result<Machine> machine = ParseMachineXml(broken.text, "f");
    const auto spent = std::chrono::steady_clock::now() - begin;
    ASSERT_FALSE(machine.ok());
    EXPECT_THAT(std::string(machine.status().message()), HasSubstr(broken.sentence));
    EXPECT_LT(spent, std::chrono::seconds(20)) << broken.sentence;
  }
  EXPECT_TRUE(ParseMachineXml(Nested(kDeepestElement), "f").ok());
}

TEST(MachineXml, LargeMachinesAreReadButNotBuilt) {
  const Result<Machine> machine = ParseMachineXml(Wide(90'000), "f");
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  const Result<BuiltGraph> built = BuildGraph(*machine);
  ASSERT_FALSE(built.ok());
  EXPECT_THAT(std::string(built.status().message()), HasSubstr("too large"));
}

TEST(MachineXml, ProcessorsAndPathsAreBoundedToo) {
  std::string cpus = "<system>";
  for (int i = 0; i < 2000; ++i) cpus += fmt::format("<cpu numaid=\"{}\"/>", i);
  const Result<BuiltGraph> meshed = BuildGraph(*ParseMachineXml(cpus + "</system>", "f"));
  ASSERT_FALSE(meshed.ok());
  EXPECT_THAT(std::string(meshed.status().message()), HasSubstr("2000 NUMA nodes in one host"));

  std::string ports = "<system>";
  for (int host = 0; host < 1000; ++host) {
    ports += fmt::format(
        "<cpu host_hash=\"{:#x}\" numaid=\"0\"><host rank=\"{}\"/><nic><net "
        "dev=\"0\"/></nic></cpu>",
        host + 1, host);
  }
  const Result<BuiltGraph> wide = BuildGraph(*ParseMachineXml(ports + "</system>", "f"));
  ASSERT_FALSE(wide.ok());
  EXPECT_THAT(std::string(wide.status().message()), HasSubstr("3001 ends of paths"));
}

TEST(BusId, IsReadAndWritten) {
  EXPECT_EQ(ParseBusId("0000:1b:00.1"), 0x1b001u);
  EXPECT_EQ(ParseBusId("00001:FF:1f.7"), 0x1ff1f7u);
  EXPECT_EQ(FormatBusId(*ParseBusId("000d:0a:1f.7")), "000d:0a:1f.7");
  for (const char* bad : {"", ":", "0000:1b:00", "0000:1b:0.0", "0:1b:00.00", "000000000:1b:00.0",
                          "0000:1g:00.0", "0000:1b:00.0 ", ":1b:00.0", "0000-1b:00.0"}) {
    EXPECT_FALSE(ParseBusId(bad)) << bad;
  }
}

}  // namespace
}  // namespace tutti::topology
