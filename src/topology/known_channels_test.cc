#include "topology/known_channels.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "topology/testing/channel_difference.h"
#include "topology/testing/testdata.h"

namespace tutti::topology {
namespace {

class KnownChannels : public testing::Test {
 protected:
  Graph graph_ = TestGraph(TestMachine(TestDataPath("machines/dgx1-v100.xml"))).graph;
  Paths paths_ = ComputePaths(graph_, {});
  Settings settings_;
  // A file of this process alone: tests of one program run beside one another.
  std::string file_ = testing::TempDir() + "/tutti_known_channels." + std::to_string(getpid());

  void TearDown() override { std::filesystem::remove(file_); }

  // Finds both patterns, and dumps them when the settings name `rank` as the writer.
  Result<HostChannels> Find(const Settings& settings, bool inter_host, int rank = 0) const {
    HostChannels found;
    TUTTI_ASSIGN(found.ring, FindPattern(settings, graph_, paths_, Pattern::kRing, inter_host));
    TUTTI_ASSIGN(found.tree,
                 FindPattern(settings, graph_, paths_, Pattern::kBalancedTree, inter_host));
    TUTTI_TRY(DumpChannels(settings, graph_, found, rank));
    return found;
  }
};

TEST_F(KnownChannels, WritesAFileThatStandsForTheSearch) {
  settings_.graph_dump_file = file_;
  settings_.graph_dump_file_rank = 3;
  ASSERT_TRUE(Find(settings_, true).ok());
  EXPECT_FALSE(std::filesystem::exists(file_)) << "rank 0 was not to write it";
  const auto found = Find(settings_, true, 3);
  ASSERT_TRUE(found.ok()) << found.status().message();

  Settings reading;
  reading.graph_file = file_;
  const auto read = Find(reading, true);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(FirstDifference(found.value().ring, read.value().ring), std::nullopt);
  EXPECT_EQ(FirstDifference(found.value().tree, read.value().tree), std::nullopt);
  // A job of this host alone has no use for the ports.
  const auto alone = Find(reading, false);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone.value().ring.channels[0].net_in, kNoIndex);
  EXPECT_EQ(alone.value().ring.channels[0].devices, found.value().ring.channels[0].devices);
}

TEST_F(KnownChannels, RefusesFilesThatDoNotServe) {
  settings_.graph_dump_file = file_;
  ASSERT_TRUE(Find(settings_, false).ok());
  Settings reading;
  reading.graph_file = file_;
  const auto between = Find(reading, true);
  ASSERT_FALSE(between.ok());
  EXPECT_NE(between.status().message().find("has no <net>"), std::string::npos);
  reading.graph_file = file_ + ".none";
  EXPECT_FALSE(Find(reading, false).ok());
}

TEST_F(KnownChannels, HonoursTheSettingForCrossing) {
  const Graph graph = TestGraph(TestMachine(TestDataPath("machines/dgx-h100.xml"))).graph;
  const Paths paths = ComputePaths(graph, {});
  EXPECT_EQ(FindPattern(settings_, graph, paths, Pattern::kRing, true).value().cross_nic, 2);
  settings_.cross_nic = 0;
  EXPECT_EQ(FindPattern(settings_, graph, paths, Pattern::kRing, true).value().cross_nic, 0);
}

TEST_F(KnownChannels, HonoursTheSettingsForTheirNumber) {
  const Graph graph = TestGraph(TestMachine(TestDataPath("machines/dgx-h100.xml"))).graph;
  const Paths paths = ComputePaths(graph, {});
  const auto find = [&](int64_t least, int64_t most) {
    settings_.min_nchannels = least;
    settings_.max_nchannels = most;
    const auto found = FindPattern(settings_, graph, paths, Pattern::kRing, false);
    EXPECT_TRUE(found.ok());
    EXPECT_TRUE(CheckChannels(graph, paths, graph.Devices(), *found).ok());
    return *found;
  };
  const Channels free = find(0, 0);
  EXPECT_EQ(free.channels.size(), 16u);
  const Channels one = find(0, 1);
  EXPECT_EQ(one.channels.size(), 1u);
  EXPECT_GT(one.bandwidth_intra_gbps, 2 * free.bandwidth_intra_gbps) << "the best of one";
  const Channels many = find(17, 0);
  EXPECT_EQ(many.channels.size(), 32u);
  EXPECT_NEAR(many.TotalGbps(), free.TotalGbps(), 0.1);
  EXPECT_LE(find(64, 4).channels.size(), 4u);
  EXPECT_LE(find(0, 7).channels.size(), 7u);
}

}  // namespace
}  // namespace tutti::topology
