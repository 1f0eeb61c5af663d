#include "plan/reduction_order.h"

#include <gtest/gtest.h>

#include "plan/mesh.h"
#include "plan/testing/plan_by_size.h"

namespace tutti {
namespace {

TEST(ReductionOrderTest, IsAskedForWhereItChangesBits) {
  for (const ReduceKind kind : {ReduceKind::kSum, ReduceKind::kProd}) {
    EXPECT_EQ(OrderOf(DataType::kInt8, kind), ReductionOrder::kAny);
    EXPECT_EQ(OrderOf(DataType::kFloat64, kind), ReductionOrder::kByRank);
    EXPECT_EQ(OrderOf(DataType::kFloat32, kind), ReductionOrder::kByRank);
    EXPECT_EQ(OrderOf(DataType::kBfloat16, kind), ReductionOrder::kByRankRoundedOnce);
    EXPECT_EQ(OrderOf(DataType::kFloat8e5m2, kind), ReductionOrder::kByRankRoundedOnce);
  }
  EXPECT_EQ(OrderOf(DataType::kFloat16, ReduceKind::kMax), ReductionOrder::kAny);
}

// The order of a deterministic reduction is kept at every size, whatever the lists of the user say.
class HostReductionOrderTest : public ::testing::TestWithParam<bool> {};

TEST_P(HostReductionOrderTest, IsKeptAtEverySize) {
  const bool one_host = GetParam();
  for (const int n : {2, 3, 8}) {
    PlanContext context = {
        .num_ranks = n,
        .host = {.one_host = one_host, .stage_bytes = 128 << 10, .slot_bytes = 64 << 10}};
    for (const uint32_t allowed : {0u, 1u << static_cast<int>(Algorithm::kRing)}) {
      context.allowed_algorithms.fill(allowed);
      for (const ReductionOrder order :
           {ReductionOrder::kByRank, ReductionOrder::kByRankRoundedOnce}) {
        for (const Collective collective :
             {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter,
              Collective::kReduceScatterV}) {
          for (size_t count = 1; count < size_t{1} << 30; count *= 3) {
            const Plan choice = PlanFor(context, collective, count, 4, order);
            EXPECT_LT(choice.us, 1e18);
            EXPECT_TRUE(KeepsOrder(*choice.row, order, n))
                << Name(choice.algorithm()) << " for " << count << " on " << n;
          }
        }
      }
    }
  }
}

// Between two ranks a single addition keeps the order at no cost.
TEST_P(HostReductionOrderTest, IsFreeBetweenTwoRanks) {
  const PlanContext context = {
      .num_ranks = 2,
      .host = {.one_host = GetParam(), .stage_bytes = 128 << 10, .slot_bytes = 64 << 10}};
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
    for (size_t count = 1; count < size_t{1} << 30; count += count / 2 + 1) {
      const Plan free = PlanFor(context, collective, count, 4);
      const Plan ordered = PlanFor(context, collective, count, 4, ReductionOrder::kByRank);
      EXPECT_EQ(ordered.algorithm(), free.algorithm()) << Name(collective) << " of " << count;
      EXPECT_EQ(ordered.protocol, free.protocol) << Name(collective) << " of " << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostReductionOrderTest, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "One" : "Several"; });

TEST(ReductionOrderTest, IsKeptAtEverySizeOnGpus) {
  for (const int n : {2, 3, 8, 16}) {
    PlanContext context;
    context.kind = RankKind::kMesh;
    context.num_ranks = n;
    context.mesh.slot_bytes = 64 << 10;
    context.mesh.ring_slot_bytes = static_cast<size_t>(n) * context.mesh.slot_bytes;
    context.mesh.ll_slot_bytes = 2048;
    context.mesh.ll128_slot_bytes = 4080;
    context.mesh.max_blocks = 64;
    for (const uint32_t algorithms : {0u, Bit(Algorithm::kRing)}) {
      context.allowed_algorithms.fill(algorithms);
      for (const Collective collective :
           {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter}) {
        for (size_t count = 1; count < size_t{1} << 30; count *= 3) {
          const Plan choice =
              PlanFor(context, collective, count, 2, ReductionOrder::kByRankRoundedOnce);
          EXPECT_TRUE(KeepsOrder(*choice.row, ReductionOrder::kByRankRoundedOnce, n))
              << DescribeMesh(choice) << " for " << count << " on " << n;
        }
      }
    }
  }
}

// A chain with stored partial sums serves elements that hold partial sums in full.
TEST(ReductionOrderTest, LongReducesOfWideElementsGoDownAChain) {
  PlanContext context;
  context.kind = RankKind::kMesh;
  context.num_ranks = 4;
  context.mesh.slot_bytes = 64 << 10;
  context.mesh.ring_slot_bytes = 4 * context.mesh.slot_bytes;
  context.mesh.max_blocks = 64;
  const auto chosen = [&](size_t elem_bytes, ReductionOrder order) {
    return PlanFor(context, Collective::kReduce, (size_t{64} << 20) / elem_bytes, elem_bytes, order)
        .row->id;
  };
  EXPECT_EQ(chosen(4, ReductionOrder::kByRank), MeshAlgorithm::kReduceRankChain);
  EXPECT_EQ(chosen(2, ReductionOrder::kByRankRoundedOnce), MeshAlgorithm::kReduceTwoShot);
  EXPECT_EQ(chosen(4, ReductionOrder::kAny), MeshAlgorithm::kReduceChain);
}

}  // namespace
}  // namespace tutti
