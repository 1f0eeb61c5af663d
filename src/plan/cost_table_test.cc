#include "plan/cost_table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "plan/mesh.h"
#include "plan/plan.h"
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
    EXPECT_GT(row.most_gbps, 0);
  }
}

// Every algorithm that a communicator of ranks on hosts may choose has a price.
TEST(CostTableTest, PricesWhateverHostsMayChoose) {
  for (const Wire wire : {Wire::kSharedMemory, Wire::kTcp}) {
    for (const Protocol protocol : {Protocol::kLL, Protocol::kSimple}) {
      for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree,
                                        Algorithm::kRecursiveDoubling, Algorithm::kExchange})
        EXPECT_NE(FindCost(wire, algorithm, protocol), nullptr) << Name(wire) << Name(algorithm);
    }
  }
  EXPECT_EQ(FindCost(Wire::kTcp, Algorithm::kPull, Protocol::kSimple), nullptr);
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

// `make docs` runs this test with WRITE_DOCS set, and the test then writes the tables instead of
// comparing the tables.
void ExpectInPage(const std::string& source, const std::string& table) {
  const std::string path = kSource + "/docs/cost_model.md";
  const std::string begin = "<!-- the table of " + source + ", by `make docs` -->\n";
  const std::string end = "<!-- end of the table -->\n";
  const std::string page = ReadAll(path);
  const size_t from = page.find(begin);
  const size_t to = page.find(end, from == std::string::npos ? 0 : from);
  ASSERT_TRUE(from != std::string::npos && to != std::string::npos) << path << ": " << source;
  const std::string fresh = page.substr(0, from) + begin + table + page.substr(to);
  if (std::getenv("WRITE_DOCS") != nullptr) std::ofstream(path) << fresh;
  EXPECT_EQ(ReadAll(path), fresh) << "run `make docs`";
}

TEST(CostTableDocsTest, TheTablesOfThePageAreUpToDate) {
  ExpectInPage("src/plan/cost_table.cc", CostTableMarkdown());
  ExpectInPage("src/plan/gpu_costs.def", GpuCostsMarkdown());
}

// Compares the numbers for GPUs with measured times of Tutti on two H200 (bench/results/gpu.md),
// float32.
TEST(GpuCostsTest, PredictsWhatWasMeasured) {
  struct Point {
    Collective collective;
    size_t bytes;  // The length of the larger buffer.
    double us;
  };
  constexpr Point kMeasured[] = {
      {Collective::kAllReduce, 256, 2.93},         {Collective::kAllReduce, 64 << 10, 3.94},
      {Collective::kAllReduce, 1 << 20, 7.52},     {Collective::kAllReduce, 16 << 20, 63.5},
      {Collective::kAllReduce, 1 << 30, 3001},     {Collective::kAllGather, 256, 2.23},
      {Collective::kAllGather, 1 << 20, 5.35},     {Collective::kAllGather, 1 << 30, 1613},
      {Collective::kReduceScatter, 64 << 10, 3.5}, {Collective::kReduceScatter, 64 << 20, 137},
      {Collective::kBroadcast, 256 << 10, 3.37},   {Collective::kBroadcast, 64 << 20, 190},
      {Collective::kReduce, 1 << 20, 5.73},        {Collective::kReduce, 256 << 20, 735},
      {Collective::kAlltoAll, 64 << 10, 2.97},     {Collective::kAlltoAll, 64 << 20, 110},
      {Collective::kGather, 1 << 20, 4.47},        {Collective::kScatter, 64 << 20, 97}};
  const PlanContext context = MeshContextFor(2, 132, GpuReach::kNvlink);
  for (const Point& point : kMeasured) {
    const bool whole = point.collective == Collective::kAllReduce ||
                       point.collective == Collective::kBroadcast ||
                       point.collective == Collective::kReduce;
    const double us = PredictUs(context, {.collective = point.collective,
                                          .count = point.bytes / (whole ? 4 : 8),
                                          .type = DataType::kFloat32});
    EXPECT_NEAR(us / point.us, 1, 0.35) << Name(point.collective) << " of " << point.bytes;
  }
}

TEST(GpuCostsTest, HostMemoryHasItsOwnNumbers) {
  EXPECT_EQ(CostsOf(GpuReach::kNvlink).ring_bytes_per_us, 360e3);
  EXPECT_EQ(CostsOf(GpuReach::kHostMemory).ring_bytes_per_us, 20e3);
  EXPECT_EQ(MeshContextFor(4, 132, GpuReach::kHostMemory).mesh.ll128_slot_bytes, 0u);
}

double Us(const MachineJob& job, Collective collective, size_t bytes) {
  const std::optional<Prediction> found = Predict(job, collective, bytes / 4, DataType::kFloat32);
  EXPECT_TRUE(found.has_value());
  return found ? found->us : 0;
}

// `tutti topo predict` gives the answer of a communicator of such GPUs, with wires as fast as the
// machine's.
TEST(PredictTest, AnswersAsACommunicatorOfGpusDoes) {
  const MachineJob job = JobOf("h200x8-vm", 1);
  PlanContext context = MeshContextFor(8, 132, GpuReach::kNvlink);
  context.mesh.link_bytes_per_us = job.ring.TotalGbps() * 1e3;
  for (size_t bytes = 64; bytes < size_t{1} << 32; bytes *= 4) {
    for (const Collective collective : {Collective::kAllReduce, Collective::kAlltoAll}) {
      const Question question = {
          .collective = collective, .count = bytes / 4, .type = DataType::kFloat32};
      EXPECT_DOUBLE_EQ(Us(job, collective, bytes), PredictUs(context, question));
      EXPECT_EQ(Predict(job, collective, bytes / 4, DataType::kFloat32)->algorithm,
                MakePlan(context, question).algorithm());
    }
  }
}

TEST(PredictTest, FollowsTheChannelsOfTheMachine) {
  // The GPUs are the same on both machines, and the wires between them differ.
  const double ratio = Us(JobOf("pcie-l40sx8", 1), Collective::kAllReduce, 1 << 30) /
                       Us(JobOf("dgx-h100", 1), Collective::kAllReduce, 1 << 30);
  EXPECT_GT(ratio, 10);
  EXPECT_LT(ratio, 25);
  // Between hosts the network decides.
  const MachineJob two = JobOf("dgx-h100", 2);
  EXPECT_GT(Us(two, Collective::kAllReduce, 1 << 30),
            Us(JobOf("dgx-h100", 1), Collective::kAllReduce, 1 << 30));
  MachineJob slow = two;
  slow.ring.bandwidth_inter_gbps /= 100;
  EXPECT_GT(Us(slow, Collective::kAllReduce, 1 << 30), Us(two, Collective::kAllReduce, 1 << 30));
  // More to move takes no less.
  double before = 0;
  for (size_t bytes = 64; bytes < size_t{1} << 36; bytes *= 4) {
    const double us = Us(two, Collective::kAllReduce, bytes);
    EXPECT_GE(us, before);
    before = us;
  }
}

TEST(PredictTest, OneRankHasNothingToWaitFor) {
  const MachineJob alone = JobOf("gh200", 1);
  EXPECT_EQ(alone.num_ranks(), 1);
  EXPECT_FALSE(Predict(alone, Collective::kAllReduce, 1000, DataType::kFloat32).has_value());
}

}  // namespace
}  // namespace tutti
