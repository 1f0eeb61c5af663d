#include "topology/graph_xml.h"

#include <gtest/gtest.h>

#include <random>

#include "topology/search.h"
#include "topology/testing/channel_difference.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

constexpr std::string_view kTwoRings = R"(<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20"
   latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="0">
    <channel><gpu dev="0"/><gpu dev="0x1"/><gpu dev="0x2"/><gpu dev="0x3"/></channel>
    <channel><gpu dev="0"/><gpu dev="0x3"/><gpu dev="0x2"/><gpu dev="0x1"/></channel>
  </graph>
  <graph id="3" pattern="5" nchannels="0" typeintra="LOC" typeinter="LOC"/>
</graphs>
)";

Graph Example(const std::string& name = "four-gpu-example") {
  return TestGraph(TestMachine(TestDataPath("machines/" + name + ".xml"))).graph;
}

std::string ErrorOf(std::string_view text) {
  const auto read = ParseGraphXml(text, "file", Example());
  return read.ok() ? "" : std::string(read.status().message());
}

std::string With(std::string_view from, std::string_view to) {
  std::string text(kTwoRings);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST(GraphXml, ReadsWhatNcclWrites) {
  const Graph graph = Example();
  const auto read = ParseGraphXml(kTwoRings, "file", graph);
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read.value().size(), 1u);
  const Channels& ring = read.value()[0];
  EXPECT_EQ(ring.pattern, Pattern::kRing);
  EXPECT_EQ(ring.bandwidth_intra_gbps, 20);
  EXPECT_EQ(ring.kind_intra, PathKind::kNvlink);
  EXPECT_FALSE(ring.same_channels);
  ASSERT_EQ(ring.channels.size(), 2u);
  const auto gpus = graph.Devices();
  EXPECT_EQ(ring.channels[1].devices, (std::vector<NodeIndex>{gpus[0], gpus[3], gpus[2], gpus[1]}));
  EXPECT_TRUE(CheckChannels(graph, ComputePaths(graph, {}), gpus, ring).ok());
}

TEST(GraphXml, GivesBackWhatWasWritten) {
  for (const std::string& path : TestMachines()) {
    SCOPED_TRACE(path);
    const Graph graph = TestGraph(TestMachine(path)).graph;
    const Paths paths = ComputePaths(graph, {});
    for (const bool inter : {false, true}) {
      Demand demand;
      demand.inter_host = inter && !graph.OfKind(NodeKind::kNet).empty();
      std::vector<Channels> found;
      for (const Pattern pattern : {Pattern::kRing, Pattern::kTree}) {
        demand.pattern = pattern;
        const auto one = Search(graph, paths, demand);
        ASSERT_TRUE(one.ok()) << one.status().message();
        found.push_back(one.value());
      }
      const auto read = ParseGraphXml(FormatGraphXml(graph, found), "file", graph);
      ASSERT_TRUE(read.ok()) << read.status().message();
      ASSERT_EQ(read.value().size(), 2u);
      EXPECT_EQ(FirstDifference(found[0], read.value()[0]), std::nullopt);
      EXPECT_EQ(FirstDifference(found[1], read.value()[1]), std::nullopt);
      EXPECT_EQ(read.value()[0].same_channels, found[0].same_channels);
    }
  }
}

TEST(GraphXml, SaysWhereAFileIsWrong) {
  EXPECT_EQ(ErrorOf(With("<gpu dev=\"0x2\"/>", "<gpu dev=\"0x1\"/>")).substr(0, 9), "file:4:44");
  EXPECT_NE(ErrorOf(With("0x2", "0x7")).find("no gpu 0x7"), std::string::npos);
  EXPECT_NE(ErrorOf(With("<gpu dev=\"0x2\"/>", "")).find("has 3 gpus"), std::string::npos);
  EXPECT_NE(ErrorOf(With("nchannels=\"2\"", "nchannels=\"3\"")).find("has 2 channels"),
            std::string::npos);
  EXPECT_NE(ErrorOf(With("NVL", "FAST")).find("FAST"), std::string::npos);
  EXPECT_FALSE(ErrorOf(With("speedintra=\"20\"", "speedintra=\"1e300\"")).empty());
  EXPECT_FALSE(ErrorOf(With("speedintra=\"20\"", "speedintra=\"nan\"")).empty());
  EXPECT_FALSE(ErrorOf(With("pattern=\"4\"", "pattern=\"400000000000\"")).empty());
  EXPECT_FALSE(ErrorOf(With("<gpu dev=\"0\"/>", "<net dev=\"0\"/>")).empty());
  EXPECT_FALSE(ErrorOf(With("id=\"3\"", "id=\"0\"")).empty());
  EXPECT_FALSE(ErrorOf("").empty());
  EXPECT_FALSE(ErrorOf("<system/>").empty());
}

TEST(GraphXml, BoundsTheChannels) {
  std::string text =
      "<graphs><graph id=\"0\" pattern=\"4\" speedintra=\"1\" typeintra=\"NVL\" "
      "typeinter=\"PIX\">";
  for (int i = 0; i < 65; ++i) {
    text += "<channel><gpu dev=\"0\"/><gpu dev=\"1\"/><gpu dev=\"2\"/><gpu dev=\"3\"/></channel>";
  }
  EXPECT_NE(ErrorOf(text + "</graph></graphs>").find("more than 64"), std::string::npos);
}

// Seeded mutations: whatever comes is read or refused, and what is read can be written and read.
TEST(GraphXml, SurvivesMutations) {
  const Graph graph = Example();
  std::mt19937 random(7);
  int good = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text(kTwoRings);
    for (unsigned i = random() % 4; i > 0; --i) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random() % 128);
          break;
        case 1:
          text.erase(at, random() % 20);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
    }
    const auto read = ParseGraphXml(text, "file", graph);
    if (!read.ok()) {
      EXPECT_FALSE(read.status().message().empty());
      continue;
    }
    ++good;
    EXPECT_TRUE(ParseGraphXml(FormatGraphXml(graph, read.value()), "again", graph).ok()) << text;
  }
  EXPECT_GT(good, 1000);
}

}  // namespace
}  // namespace tutti::topology
