#include "plan/cost_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <tuple>

#include "plan/choose.h"
#include "plan/predict.h"
#include "topology/graph_builder.h"
#include "topology/machine_xml.h"
#include "topology/paths.h"
#include "topology/search.h"

namespace tutti {
namespace {

const std::string kSource = TUTTI_SOURCE_DIR;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

topology::Channels FindChannels(const std::string& machine, topology::Pattern pattern, bool inter) {
  auto read =
      topology::ReadMachineFile(kSource + "/tests/data/topologies/machines/" + machine + ".xml");
  EXPECT_TRUE(read.ok());
  const auto built = topology::BuildGraph(*read);
  EXPECT_TRUE(built.ok());
  topology::Demand demand;
  demand.pattern = pattern;
  demand.inter_host = inter;
  const auto found =
      topology::Search(built->graph, topology::ComputePaths(built->graph, {}), demand);
  EXPECT_TRUE(found.ok());
  return *found;
}

MachineJob JobOf(const std::string& machine, int hosts) {
  MachineJob job;
  job.hosts = hosts;
  job.ring = FindChannels(machine, topology::Pattern::kRing, hosts > 1);
  job.tree = FindChannels(machine, topology::Pattern::kBalancedTree, hosts > 1);
  job.ranks_per_host = static_cast<int>(job.ring.channels[0].devices.size());
  return job;
}

TEST(CostTableTest, HasOneSoundRowForEachWay) {
  std::set<std::tuple<Wire, Algorithm, Protocol>> seen;
  for (const CostRow& row : CostTable()) {
    EXPECT_TRUE(seen.insert({row.wire, row.algorithm, row.protocol}).second);
    EXPECT_EQ(FindCost(row.wire, row.algorithm, row.protocol), &row);
    EXPECT_GT(row.start_us + row.step_us, 0);
    EXPECT_TRUE(row.part > 0 && row.part <= 1);
    // A host rank moves what a core moves; a GPU what its links have.
    EXPECT_EQ(row.most_gbps > 0, !IsGpu(row.wire));
  }
}

// All that a communicator of host ranks may choose has a price.
TEST(CostTableTest, PricesWhateverHostsMayChoose) {
  for (const Wire wire : {Wire::kSharedMemory, Wire::kTcp}) {
    for (const Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree,
                                        Algorithm::kRecursiveDoubling, Algorithm::kExchange})
        EXPECT_NE(FindCost(wire, algorithm, protocol), nullptr) << Name(wire) << Name(algorithm);
    }
  }
  EXPECT_EQ(FindCost(Wire::kPci, Algorithm::kOneShot, Protocol::kLL), nullptr);
}

TEST(CostTableTest, ChannelsBoundWhatARankMoves) {
  const CostRow row = {Wire::kSharedMemory, Algorithm::kRing, Protocol::kSimple, 1, 2, 8, 0.5};
  const Extent extent = {3, 2, 8e6};
  EXPECT_DOUBLE_EQ(CostUs(row, extent, 0, false), 1 + 6 + 1000);
  EXPECT_DOUBLE_EQ(CostUs(row, extent, 100, false), 1 + 6 + 1000);
  EXPECT_DOUBLE_EQ(CostUs(row, extent, 4, false), 1 + 6 + 4000) << "half of the channels' 4 GB/s";
  EXPECT_DOUBLE_EQ(CostUs(row, extent, 0, true),
                   1 + 6 + 2 * WakeUs(Wire::kSharedMemory) + 1000 / kSharedCorePart);
}

// `make docs` runs this test with WRITE_DOCS set, which writes the table instead of comparing it.
TEST(CostTableDocsTest, ThePageIsUpToDate) {
  const std::string path = kSource + "/docs/cost_model.md";
  const std::string begin = "<!-- the table of src/plan/cost_table.cc, by `make docs` -->\n";
  const std::string end = "<!-- end of the table -->\n";
  std::string page = ReadAll(path);
  const size_t from = page.find(begin);
  const size_t to = page.find(end);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos) << path;
  const std::string fresh = page.substr(0, from) + begin + CostTableMarkdown() + page.substr(to);
  if (std::getenv("WRITE_DOCS") != nullptr) std::ofstream(path) << fresh;
  EXPECT_EQ(ReadAll(path), fresh) << "run `make docs`";
}

// The measurements that the rows for NVLink were fitted to, against what the model makes of the
// channels that the search finds on that machine.
class MeasuredH200Test : public testing::Test {
 protected:
  // One table of bench/results/nccl-h200x8.txt; calls visit(bytes, us).
  template <typename Visit>
  static void VisitTable(const std::string& name, const Visit& visit) {
    std::istringstream lines(ReadAll(kSource + "/bench/results/nccl-h200x8.txt"));
    bool inside = false;
    int rows = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("# ")) {
        if (line.find('.') != std::string::npos && line.find(' ', 2) == std::string::npos)
          inside = line == "# " + name;
        continue;
      }
      std::istringstream words(line);
      double bytes = 0, count = 0, us = 0;
      std::string type, op, root;
      if (!inside || !(words >> bytes >> count >> type >> op >> root >> us) || bytes == 0) continue;
      visit(bytes, us);
      ++rows;
    }
    EXPECT_GT(rows, 8) << name;
  }

  // `factor`: how far any one may be off.
  void Compare(const std::string& table, Collective collective, double part,
               const std::set<Algorithm>& algorithms, double factor) {
    VisitTable(table, [&](double bytes, double us) {
      for (const Prediction& one : PredictAll(job_, collective, bytes * part)) {
        if (!algorithms.contains(one.algorithm)) continue;
        EXPECT_LT(one.us, us * factor) << table << " " << bytes << " " << Name(one.algorithm);
        EXPECT_GT(one.us, us / factor) << table << " " << bytes << " " << Name(one.algorithm);
        return;
      }
      FAIL() << "nothing predicts " << table;
    });
  }

  void SetUp() override {
    job_ = JobOf("h200x8-vm", 1);
    job_.in_graph = true;
  }
  MachineJob job_;
};

TEST_F(MeasuredH200Test, RingsAreWithinAFifth) {
  const std::set<Algorithm> ring = {Algorithm::kRing};
  Compare("all_reduce.graph", Collective::kAllReduce, 1, ring, 1.2);
  Compare("all_gather.graph", Collective::kAllGather, 1.0 / 8, ring, 1.2);
  Compare("reduce_scatter.graph", Collective::kReduceScatter, 1.0 / 8, ring, 1.2);
}

TEST_F(MeasuredH200Test, SymmetricKernelsAreWithinAHalf) {
  const std::set<Algorithm> shots = {Algorithm::kOneShot, Algorithm::kTwoShot};
  Compare("all_reduce.symgraph", Collective::kAllReduce, 1, shots, 1.5);
}

TEST_F(MeasuredH200Test, ExchangesAreWithinTwo) {
  Compare("alltoall.graph", Collective::kAlltoAll, 1.0 / 8, {Algorithm::kExchange}, 2);
}

TEST_F(MeasuredH200Test, ALaunchOutsideAGraphCostsMore) {
  const double in_graph = PredictAll(job_, Collective::kAllReduce, 64)[0].us;
  job_.in_graph = false;
  EXPECT_DOUBLE_EQ(PredictAll(job_, Collective::kAllReduce, 64)[0].us, in_graph + kLaunchUs);
}

TEST(PredictTest, FollowsTheChannelsOfTheMachine) {
  // The same GPUs; what is between them differs.
  const MachineJob nvlink = JobOf("dgx-h100", 1);
  const MachineJob pci = JobOf("pcie-l40sx8", 1);
  const double big = 1e9;
  const double ratio = PredictAll(pci, Collective::kAllReduce, big)[0].us /
                       PredictAll(nvlink, Collective::kAllReduce, big)[0].us;
  EXPECT_GT(ratio, 10);
  EXPECT_LT(ratio, 25);
  // Trees where many hosts have little to say, rings where two have much.
  const MachineJob many = JobOf("dgx-h100", 64);
  EXPECT_EQ(PredictAll(many, Collective::kAllReduce, 1024)[0].algorithm, Algorithm::kTree);
  EXPECT_EQ(PredictAll(JobOf("dgx-h100", 2), Collective::kAllReduce, 1e10)[0].algorithm,
            Algorithm::kRing);
  // More to move takes longer; ways come in order.
  double before = 0;
  for (double bytes = 64; bytes < 1e11; bytes *= 4) {
    const auto all = PredictAll(many, Collective::kAllReduce, bytes);
    for (size_t i = 1; i < all.size(); ++i) EXPECT_LE(all[i - 1].us, all[i].us);
    EXPECT_GT(all[0].us, before);
    before = all[0].us;
  }
}

TEST(PredictTest, OneRankHasNothingToWaitFor) {
  MachineJob alone = JobOf("gh200", 1);
  EXPECT_EQ(alone.num_ranks(), 1);
  EXPECT_TRUE(PredictAll(alone, Collective::kAllReduce, 1e6).empty());
}

}  // namespace
}  // namespace tutti
