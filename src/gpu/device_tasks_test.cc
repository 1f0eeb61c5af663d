#include "gpu/device_tasks.h"

#include <gtest/gtest.h>

#include "base/reduce.h"

namespace tutti {
namespace {

TEST(DeviceTasksTest, MovedElementsAreBytes) {
  CollectiveTask task = {
      .collective = Collective::kAllGather, .count = 3, .type = DataType::kFloat32};
  EXPECT_EQ(KernelElemBytes(task), 1u);
  EXPECT_EQ(KernelCount(task), 12u);
  task.collective = Collective::kReduce;
  EXPECT_EQ(KernelElemBytes(task), 4u);
  EXPECT_EQ(KernelCount(task), 3u);
}

// Where partial sums are stored as float16, the sum of an average could overflow.
TEST(DeviceTasksTest, AveragesOfHalvesAreScaledWherePartialSumsAreStored) {
  CollectiveTask task = {
      .collective = Collective::kAllReduce, .count = 3, .type = DataType::kFloat16};
  task.op = {.kind = ReduceKind::kSum, .average = true};
  PlanContext context;
  context.num_ranks = 4;
  const auto args_by = [&](MeshAlgorithm algorithm) {
    Plan plan;
    plan.row = &RowOf(algorithm);
    return ReduceArgsOf(task, context, plan);
  };
  const cuda::ReduceArgs ring = args_by(MeshAlgorithm::kAllReduceRing);
  EXPECT_TRUE(ring.scale);
  EXPECT_EQ(ring.scalar, ScalarBits(DataType::kFloat16, 0.25));
  EXPECT_EQ(ring.divisor, 0u);
  const cuda::ReduceArgs window = args_by(MeshAlgorithm::kAllReduceTwoShot);
  EXPECT_FALSE(window.scale);
  EXPECT_EQ(window.divisor, 4u);
  context.deterministic = true;
  EXPECT_EQ(args_by(MeshAlgorithm::kAllReduceRing).divisor, 4u) << "which rounds once";
  context.deterministic = false;
  task.type = DataType::kBfloat16;
  EXPECT_EQ(args_by(MeshAlgorithm::kAllReduceRing).divisor, 4u);
}

}  // namespace
}  // namespace tutti
