// `tutti topo search` and `tutti topo draw` as people use them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program_test.h"

namespace tutti::tools {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;

std::string MachinePath(const std::string& name) {
  return std::string(TUTTI_SOURCE_DIR "/tests/data/topologies/machines/") + name + ".xml";
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

TEST(TopoSearch, PrintsTheWorkedExampleAsJson) {
  const Outcome outcome =
      Tutti({"topo", "search", "--json", "--file", MachinePath("four-gpu-example")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json ring = Json::parse(outcome.out).at("ring");
  EXPECT_EQ(ring.at("channels"), 4);
  EXPECT_EQ(ring.at("bandwidth_intra"), 20.0);
  EXPECT_EQ(ring.at("bandwidth_inter"), 20.0);
  EXPECT_EQ(ring.at("type_intra"), "NVL");
  EXPECT_EQ(ring.at("same_channels"), false);
  EXPECT_EQ(ring.at("cross_nic"), 0);
  EXPECT_EQ(ring.at("orders"), Json::parse("[[0,1,2,3],[0,3,2,1],[0,3,1,2],[0,2,1,3]]"));
  EXPECT_GE(ring.at("search_ms"), 0.0);
  EXPECT_GE(Json::parse(outcome.out).at("tree").at("channels"), 4);
}

TEST(TopoSearch, SaysHowHostsAreJoined) {
  const Outcome outcome =
      Tutti({"topo", "search", "--hosts", "3", "--file", MachinePath("dgx1-v100")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("4 rings of 12 GB/s (48 in all)"));
  EXPECT_THAT(outcome.out, HasSubstr("3 such hosts, 24 ranks: 4 rings, 8 trees"));
  EXPECT_THAT(outcome.out, HasSubstr("on host 1"));
}

TEST(TopoSearch, FailsWithASentence) {
  const Outcome none =
      Tutti({"topo", "search", "--hosts", "2", "--file", MachinePath("four-gpu-example")});
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("has no network port"));
  const Outcome missing = Tutti({"topo", "search", "--file", "/nonexistent.xml"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, StartsWith("tutti topo search: "));
}

TEST(TopoSearch, LeavesOutWhatNothingJoinsWithAWord) {
  const std::string file = testing::TempDir() + "/tutti_apart.xml";
  std::ofstream text(file);
  text << "<system version=\"1\">";
  for (const char* host : {"0x1", "0x2"}) {
    text << "<cpu host_hash=\"" << host << "\" numaid=\"0\"><pci busid=\"0000:03:00.0\">"
         << "<gpu dev=\"0\" sm=\"90\"/></pci><pci busid=\"0000:04:00.0\"><gpu dev=\"1\" sm=\"90\"/>"
         << "</pci></cpu>";
  }
  text << "</system>";
  text.close();
  const Outcome outcome = Tutti({"topo", "search", "--json", "--file", file});
  std::filesystem::remove(file);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("Nothing but a network joins 1/GPU 0, 1/GPU 1 to rank 0"));
  EXPECT_EQ(Json::parse(outcome.out).at("ring").at("orders")[0], Json::parse("[0,1]"));
}

TEST(TopoSearch, FollowsNcclsGraphFiles) {
  const std::string file = testing::TempDir() + "/tutti_channels.xml";
  const Outcome written = Tutti({"topo", "search", "--file", MachinePath("dgx-h100")},
                                {{"NCCL_GRAPH_DUMP_FILE", file}});
  ASSERT_EQ(written.status, 0) << written.err;
  std::string text = ReadFile(file);
  EXPECT_THAT(text, StartsWith("<graphs version=\"1\">"));
  const size_t at = text.find("speedintra=\"");
  ASSERT_NE(at, std::string::npos);
  const size_t value = at + 12;
  text.replace(value, text.find('"', value) - value, "7.5");
  std::ofstream(file) << text;
  const Outcome read = Tutti({"topo", "search", "--json", "--file", MachinePath("dgx-h100")},
                             {{"NCCL_GRAPH_FILE", file}});
  ASSERT_EQ(read.status, 0) << read.err;
  EXPECT_EQ(Json::parse(read.out).at("ring").at("bandwidth_intra"), 7.5);
  std::filesystem::remove(file);
}

TEST(TopoDraw, WritesSvgAndPng) {
  const std::string base = testing::TempDir() + "/tutti_picture";
  const Outcome svg =
      Tutti({"topo", "draw", "--file", MachinePath("dgx-h100"), "-o", base + ".svg"});
  ASSERT_EQ(svg.status, 0) << svg.err;
  const std::string text = ReadFile(base + ".svg");
  EXPECT_THAT(text, StartsWith("<svg "));
  EXPECT_THAT(text, HasSubstr(">GPU 7<"));
  EXPECT_THAT(text, HasSubstr(">NVSwitch<"));
  const Outcome png =
      Tutti({"topo", "draw", "--file", MachinePath("dgx-h100"), "-o", base + ".png"});
  if (png.status == 0) {
    EXPECT_THAT(ReadFile(base + ".png"), StartsWith("\x89PNG"));
  } else {
    EXPECT_THAT(png.err, HasSubstr("cairo"));
  }
  const Outcome wrong =
      Tutti({"topo", "draw", "--file", MachinePath("dgx-h100"), "-o", base + ".bmp"});
  EXPECT_EQ(wrong.status, 1);
  std::filesystem::remove(base + ".svg");
  std::filesystem::remove(base + ".png");
}

}  // namespace
}  // namespace tutti::tools
