// `tutti topo` as people use it: with files of machines, and on this one.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program_test.h"

namespace tutti::tools {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

std::string DataPath(const std::string& name) {
  return std::string(TUTTI_SOURCE_DIR "/tests/data/topologies/") + name;
}
std::string MachinePath(const std::string& name) { return DataPath("machines/" + name + ".xml"); }

Outcome Topo(std::vector<std::string> arguments, const Variables& variables = {}) {
  arguments.insert(arguments.begin(), "topo");
  return Tutti(std::move(arguments), variables);
}

// A row of the truth, "NVL/370.8/4*2 LOC/5000/0", as [kind, bandwidth] a cell.
std::vector<std::pair<std::string, double>> Cells(const std::string& row) {
  std::vector<std::pair<std::string, double>> cells;
  std::istringstream words(row);
  for (std::string word; words >> word;) {
    const size_t slash = word.find('/');
    const size_t star = word.find('*');
    cells.insert(cells.end(), star == std::string::npos ? 1 : std::stoul(word.substr(star + 1)),
                 {word.substr(0, slash), std::stod(word.substr(slash + 1))});
  }
  return cells;
}

void ExpectMatrix(const Json& found, const Json& truth, const std::string& what) {
  ASSERT_EQ(found.size(), truth.size()) << what;
  for (size_t i = 0; i < truth.size(); ++i) {
    const auto cells = Cells(truth[i]);
    ASSERT_EQ(found[i].size(), cells.size()) << what;
    for (size_t j = 0; j < cells.size(); ++j) {
      EXPECT_EQ(found[i][j][0], cells[j].first) << what << " " << i << " " << j;
      EXPECT_NEAR(found[i][j][1].get<double>(), cells[j].second, 1e-3)
          << what << " " << i << " " << j;
    }
  }
}

TEST(Topo, PathsAsJsonAgreeWithNccl) {
  const Json truth = Json::parse(std::ifstream(DataPath("truth.json"))).at("machines");
  for (const auto& [name, machine] : truth.items()) {
    if (name == "pcie-l40sx8") continue;  // NCCL cuts it in two.
    const Outcome outcome = Topo({"paths", "--json", "--file", MachinePath(name)});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json found = Json::parse(outcome.out);
    ExpectMatrix(found.at("gpu_gpu"), machine.at("paths").at("gpuGpu"), name + " gpu_gpu");
    ExpectMatrix(found.at("gpu_net"), machine.at("paths").at("gpuNet"), name + " gpu_net");
    ExpectMatrix(found.at("gpu_cpu"), machine.at("paths").at("gpuCpu"), name + " gpu_cpu");
  }
}

TEST(Topo, CellsOfPathsAreKindBandwidthAndLinks) {
  const Outcome outcome = Topo({"paths", "--json", "--file", MachinePath("pcie-l40sx8")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json found = Json::parse(outcome.out);
  EXPECT_EQ(found.at("gpus")[7], "GPU 7");
  EXPECT_EQ(found.at("gpu_gpu")[0][0], (Json{"LOC", 5000.0, 0}));
  EXPECT_EQ(found.at("gpu_gpu")[0][1], (Json{"PIX", 24.0, 2}));
  EXPECT_EQ(found.at("gpu_gpu")[0][7], (Json{"SYS", 22.0, 5})) << "the machine stays whole";
}

TEST(Topo, PathsInWordsNameEveryLink) {
  const Outcome outcome = Topo({"paths", "--file", MachinePath("dgx1-v100")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              HasSubstr("GPU 0 → GPU 7  NVB 40 GB/s  –NVL 40→ GPU 4 –NVL 40→ GPU 7\n"));
}

TEST(Topo, LevelsActOnPaths) {
  const Outcome outcome = Topo({"paths", "--json", "--file", MachinePath("dgx-h100")},
                               {{"NCCL_PXN_DISABLE", "1"}, {"NCCL_P2P_LEVEL", "LOC"}});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json found = Json::parse(outcome.out);
  EXPECT_EQ(found.at("gpu_net")[0][1][0], "PHB");
  EXPECT_EQ(found.at("gpu_gpu")[0][4][0], "SYS");
}

TEST(Topo, ShowsAMachine) {
  const Outcome outcome = Topo({"show", "--hosts", "3", "--file", MachinePath("azure-ncv4")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("CPU 0  AMD"));
  EXPECT_THAT(outcome.out, HasSubstr("\n  GPU 0  rank 0, 0001:00:00.0"));
  EXPECT_THAT(outcome.out, HasSubstr("SYS  the link between processors"));
  EXPECT_THAT(outcome.out, HasSubstr("3 such hosts are joined by 1 ports of 12.5 GB/s"));
  EXPECT_THAT(outcome.out, HasSubstr("Guessed or passed over:"));
  EXPECT_THAT(outcome.out, HasSubstr("8 GT/s are taken"));
}

TEST(Topo, ShowsThisHost) {
  const Outcome outcome = Topo({"show"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("CPU"));
}

TEST(Topo, DumpsCanBeGivenBack) {
  const std::string path = testing::TempDir() + "topo_program_test.xml";
  ASSERT_EQ(Topo({"dump", "--file", MachinePath("dgx-a100"), "--output", path}).status, 0);
  const Outcome before = Topo({"paths", "--json", "--file", MachinePath("dgx-a100")});
  EXPECT_EQ(Topo({"paths", "--json", "--file", path}).out, before.out);
  EXPECT_EQ(Topo({"dump", "--file", path}).out,
            Topo({"dump", "--file", MachinePath("dgx-a100")}).out);
  std::remove(path.c_str());
}

// A file of GPUs over this host, whatever it has: what is known of it can be read again.
TEST(Topo, WhatIsKnownIsWrittenAndCanBeRead) {
  const std::string path = testing::TempDir() + "topo_program_test_known.xml";
  const Outcome shown =
      Topo({"show"}, {{"NCCL_TOPO_FILE", MachinePath("dgx-h100")}, {"NCCL_TOPO_DUMP_FILE", path}});
  ASSERT_EQ(shown.status, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("PCI 0000:15:00.0  48 GB/s"));
  const Outcome checked = Topo({"check", path});
  EXPECT_EQ(checked.status, 0) << checked.out;
  std::remove(path.c_str());
}

TEST(Topo, FilesOfHostsThatShareADomainAreOneMachine) {
  std::ifstream in(MachinePath("gb200-tray"));
  const std::string tray{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::string> arguments = {"search", "--json"};
  for (const int host : {0, 1}) {
    std::string text = tray;
    const auto replace = [&](const std::string& old, const std::string& fresh) {
      for (size_t at = 0; (at = text.find(old, at)) != std::string::npos; at += fresh.size())
        text.replace(at, old.size(), fresh);
    };
    replace("<cpu ", fmt::format("<cpu host_hash=\"0x{}\" ", host + 1));
    if (host == 1) {
      for (const int rank : {0, 1, 2, 3})
        replace(fmt::format(" rank=\"{}\"", rank), fmt::format(" rank=\"{}\"", rank + 4));
    }
    const std::string path = ::testing::TempDir() + fmt::format("tray{}.xml", host);
    std::ofstream(path) << text;
    arguments.insert(arguments.end(), {"--file", path});
  }
  const Outcome outcome = Topo(arguments);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json ring = Json::parse(outcome.out)["ring"];
  EXPECT_EQ(ring["orders"][0].size(), 8u);
  EXPECT_EQ(ring["type_intra"], "NVL");
  arguments.insert(arguments.end(), {"--file", arguments[3]});
  EXPECT_EQ(Topo(arguments).status, 0) << "the same host told twice is one host";
  arguments.back() = MachinePath("dgx-h100");
  const Outcome nameless = Topo(arguments);
  EXPECT_EQ(nameless.status, 1);
  EXPECT_THAT(nameless.err, HasSubstr("host_hash"));
}

TEST(Topo, ChecksFiles) {
  const Outcome good = Topo({"check", MachinePath("dgx-h100")});
  EXPECT_EQ(good.status, 0);
  EXPECT_THAT(good.out, HasSubstr("2 processors, 8 GPUs, 0 host devices, 8 PCI switches, 8 ports"));
  const std::string path = testing::TempDir() + "topo_program_test_bad.xml";
  std::ofstream(path) << "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"here\"/>\n"
                         "    <nic><net speed=\"fast\"/></nic>\n  </cpu>\n</system>\n";
  const Outcome bad = Topo({"check", path});
  EXPECT_EQ(bad.status, 1);
  EXPECT_THAT(bad.out,
              HasSubstr(path + ":3:5: error: busid=\"here\" of <pci>: an address such as"));
  EXPECT_THAT(bad.out, HasSubstr(":4:10: error: speed=\"fast\" of <net>: a number from"));
  const Outcome shown = Topo({"show", "--file", path});
  EXPECT_EQ(shown.status, 1);
  EXPECT_THAT(shown.err, HasSubstr("tutti topo show: " + path + ":3:5: busid"));
  std::remove(path.c_str());
  EXPECT_EQ(Topo({"check", path}).status, 1);
}

TEST(Topo, PredictsWhatACollectiveTakes) {
  const Outcome words = Topo({"predict", "--hosts", "16", "--file", MachinePath("dgx-h100")});
  ASSERT_EQ(words.status, 0) << words.err;
  EXPECT_THAT(words.out, HasSubstr("all_reduce of 128 ranks, 16 hosts"));
  EXPECT_THAT(words.out, HasSubstr("hosts move the data"));
  const Outcome outcome =
      Topo({"predict", "--collective", "all_gather", "--json", "--file", MachinePath("h200x8-vm")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json found = Json::parse(outcome.out);
  EXPECT_EQ(found.at("ranks"), 8);
  const Json last = found.at("predictions").back();
  EXPECT_EQ(last.at("algorithm"), "Ring");
  // NCCL measured 2628 us there.
  EXPECT_NEAR(last.at("time_us").get<double>(), 2628, 200);
  EXPECT_NEAR(last.at("busbw_gbps").get<double>(), 357, 25);
}

TEST(Topo, PredictsForHostRanksToo) {
  const std::string path = testing::TempDir() + "topo_program_test_hosts.xml";
  std::ofstream(path) << "<system version=\"1\">\n"
                         "  <cpu numaid=\"0\"><host dev=\"0\" rank=\"0\"/></cpu>\n"
                         "  <cpu numaid=\"1\"><host dev=\"1\" rank=\"1\"/></cpu>\n</system>\n";
  const Outcome outcome = Topo({"predict", "--json", "--file", path});
  std::remove(path.c_str());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json found = Json::parse(outcome.out);
  EXPECT_THAT(found.at("predictions")[0].at("source").get<std::string>(),
              HasSubstr("measured for host ranks"));
  const Outcome alone = Topo({"predict", "--file", MachinePath("gh200")});
  EXPECT_EQ(alone.status, 1);
  EXPECT_THAT(alone.err, HasSubstr("the job has one rank"));
}

TEST(Topo, BadCommandLinesAreUsageErrors) {
  EXPECT_EQ(Topo({}).status, 2);
  EXPECT_EQ(Topo({"check"}).status, 2);
  EXPECT_EQ(Topo({"show", "--hosts", "0"}).status, 2);
  EXPECT_EQ(Topo({"predict", "--collective", "all"}).status, 2);
}

}  // namespace
}  // namespace tutti::tools
