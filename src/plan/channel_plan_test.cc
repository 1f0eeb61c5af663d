#include "plan/channel_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 512 << 10;

TEST(ChannelPlanTest, ChannelsShareOutAllElements) {
  for (const size_t elem : {1, 2, 4, 8})
    for (const size_t count : {1, 7, 1000, 100000, 3000001})
      for (const uint32_t channels : {1, 3, 8})
        for (const Collective collective : {Collective::kAllReduce, Collective::kReduce}) {
          const ChannelContext context = {3, 2, channels, kSlotBytes};
          const ChannelPlan plan = PlanChannels(context, collective, count, elem);
          EXPECT_LE(plan.channels, channels);
          EXPECT_GE(plan.channels * plan.channel_elems, count);
          EXPECT_LT((plan.channels - 1) * plan.channel_elems, count);
          EXPECT_EQ(plan.channel_elems * elem % 16, 0u);
          EXPECT_GE(plan.slice_elems, 1u);
          EXPECT_LE(plan.slice_elems * elem, kSlotBytes);
        }
}

TEST(ChannelPlanTest, AStepLeavesRoomInTheFifo) {
  const ChannelPlan plan =
      PlanChannels({4, 2, 1, kSlotBytes}, Collective::kAllReduce, 100 << 20, 4);
  EXPECT_LE(plan.chunk_elems, 4 * plan.slice_elems);
}

TEST(ChannelPlanTest, ASlotHasRoomForTheSumsOfNarrowElements) {
  for (const DataType type : {DataType::kFloat8e4m3, DataType::kFloat16, DataType::kFloat64}) {
    const size_t sum_bytes = std::max<size_t>(4, SizeOf(type));
    for (const size_t count : {1, 1000, 3000001})
      for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
        const ChannelPlan plan = PlanRankOrder({5, 2, 3, kSlotBytes}, collective, count, type);
        EXPECT_GE(plan.channels * plan.channel_elems, count);
        EXPECT_LT((plan.channels - 1) * plan.channel_elems, count);
        EXPECT_EQ(plan.channel_elems * SizeOf(type) % 16, 0u);
        EXPECT_EQ(plan.slice_elems * SizeOf(type) % 16, 0u);
        EXPECT_EQ(plan.chunk_elems, plan.slice_elems);
        EXPECT_LE(plan.slice_elems * sum_bytes, kSlotBytes);
      }
  }
}

}  // namespace
}  // namespace tutti
