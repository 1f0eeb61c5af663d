#include "devcomm/gin_plan.h"

#include <gtest/gtest.h>

#include <cstring>

#include "devcomm/record.h"

namespace tutti {
namespace {

constexpr TeamShape kTwoHostsOfTwo = {.num_ranks = 4, .lsa_size = 2, .has_gin = true};

ncclDevCommRequirements_t Asking(ncclGinConnectionType_t connection) {
  ncclDevCommRequirements_t asked = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  asked.ginConnectionType = connection;
  return asked;
}

TEST(GinPlanTest, TheCallersNumbersComeFirst) {
  ncclDevResourceRequirements_t last = {}, first = {};
  uint32_t signal = 0, counter = 0, last_signal = 0;
  first.next = &last;
  first.ginSignalCount = 7;
  first.ginCounterCount = 2;
  first.outGinSignalStart = &signal;
  first.outGinCounterStart = &counter;
  last.ginSignalCount = 1;
  last.outGinSignalStart = &last_signal;
  ncclDevCommRequirements_t asked = Asking(NCCL_GIN_CONNECTION_FULL);
  asked.ginSignalCount = 5;
  asked.ginCounterCount = 3;
  asked.railGinBarrierCount = 2;
  asked.worldGinBarrierCount = 1;
  asked.barrierCount = 3;
  asked.resourceRequirementsList = &first;
  const Result<ResourcePlan> plan = PlanResources(asked, kTwoHostsOfTwo);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const GinPlan& gin = plan->gin;
  EXPECT_EQ(gin.num_contexts, 4);
  EXPECT_EQ(gin.num_queues, 4u);
  // A rail's barrier has signals for all ranks, because programs of 2.28 need them.
  EXPECT_EQ(gin.rail_barrier.signal0, 5u);
  EXPECT_EQ(gin.world_barrier.signal0, 5u + 2 * 4);
  EXPECT_EQ(gin.hybrid_rail_barrier.signal0, 13u + 4);
  EXPECT_EQ(gin.hybrid_world_barrier.signal0, 17u + 3 * 2);
  StoreHandles(*plan);
  EXPECT_EQ(signal, 23u + 3 * 4);
  EXPECT_EQ(last_signal, 35u + 7);
  EXPECT_EQ(counter, 3u);
  EXPECT_EQ(gin.num_signals, 43u);
  EXPECT_EQ(gin.num_counters, 5u);
  const uint64_t of_signals = 4 * 43 * sizeof(uint64_t);
  EXPECT_GE(gin.network_signals_at, gin.signals_at + of_signals);
  EXPECT_GE(gin.counters_at, gin.network_signals_at + of_signals);
  EXPECT_GE(gin.shadows_at, gin.counters_at + 4 * 5 * sizeof(uint64_t));
  EXPECT_GE(gin.values_at, gin.shadows_at + of_signals);
  EXPECT_GE(plan->bytes, gin.values_at + uint64_t{4} * 4 * gin.queue_depth * sizeof(uint64_t));
}

TEST(GinPlanTest, RailsHaveAQueueForEachTeam) {
  const Result<GinPlan> plan = PlanGin(Asking(NCCL_GIN_CONNECTION_RAIL), kTwoHostsOfTwo);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->num_queues, 2u);
}

TEST(GinPlanTest, DepthsArePowersOfTwoAndContextsAreBounded) {
  ncclDevCommRequirements_t asked = Asking(NCCL_GIN_CONNECTION_FULL);
  asked.ginQueueDepth = 5;
  asked.ginContextCount = 1 << 20;
  const Result<GinPlan> plan = PlanGin(asked, kTwoHostsOfTwo);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->queue_depth, 8u);
  EXPECT_EQ(plan->num_contexts, 256);
}

TEST(GinPlanTest, RequirementsOf228AskForAllRanks) {
  ncclDevCommRequirements_t asked;
  std::memset(&asked, 0, sizeof(asked));
  asked.railGinBarrierCount = 1;
  const Result<ncclDevCommRequirements_t> read = ReadRequirements(&asked);
  ASSERT_TRUE(read.ok());
  const Result<GinPlan> plan = PlanGin(*read, kTwoHostsOfTwo);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->connection, NCCL_GIN_CONNECTION_FULL);
  EXPECT_EQ(plan->num_contexts, 4);
  EXPECT_TRUE(plan->strong);
}

TEST(GinPlanTest, RefusesWhatCannotBe) {
  const auto refuses = [](ncclGinConnectionType_t connection, const auto& change,
                          TeamShape shape = kTwoHostsOfTwo) {
    ncclDevCommRequirements_t asked = Asking(connection);
    change(asked);
    return PlanResources(asked, shape).status().code() == Code::kInvalidArgument;
  };
  constexpr auto kNone = NCCL_GIN_CONNECTION_NONE, kFull = NCCL_GIN_CONNECTION_FULL,
                 kRail = NCCL_GIN_CONNECTION_RAIL;
  EXPECT_FALSE(refuses(kNone, [](auto&) {}));
  EXPECT_FALSE(refuses(kFull, [](auto&) {}));
  EXPECT_TRUE(refuses(kNone, [](auto& a) { a.ginSignalCount = 1; }));
  EXPECT_TRUE(refuses(kNone, [](auto& a) { a.barrierCount = 1; }));
  EXPECT_FALSE(refuses(kFull, [](auto& a) { a.barrierCount = 1; }));
  EXPECT_TRUE(refuses(kRail, [](auto& a) { a.worldGinBarrierCount = 1; }));
  EXPECT_TRUE(refuses(kFull, [](auto& a) { a.ginQueueDepth = 1 << 16; }));
  EXPECT_TRUE(refuses(kFull, [](auto& a) { a.ginSignalCount = (1 << 24) + 1; }));
  EXPECT_TRUE(refuses(kFull, [](auto& a) { a.ginCounterCount = (1 << 23) + 1; }));
  EXPECT_TRUE(refuses(kFull, [](auto& a) { a.version = 22907; }));
  EXPECT_TRUE(refuses(
      kFull, [](auto&) {}, TeamShape{.num_ranks = 4, .lsa_size = 2, .has_gin = false}));
  EXPECT_TRUE(refuses(static_cast<ncclGinConnectionType_t>(3), [](auto&) {}));
  ncclDevResourceRequirements_t element = {};
  element.ginSignalCount = -1;
  EXPECT_TRUE(refuses(kFull, [&](auto& a) { a.resourceRequirementsList = &element; }));
}

}  // namespace
}  // namespace tutti
