// What GpuChannels tells a proxy before a kernel starts.

#include <gtest/gtest.h>

#include "kernels/counting.h"
#include "kernels/ring_collective.h"
#include "plan/channel_plan.h"

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 512 << 10;

kernels::CountingPrimitives Count(const ChannelPlan& plan, int num_ranks, size_t count) {
  static constexpr int kRing[] = {0, 1};
  kernels::CountingPrimitives counting(plan.slice_elems);
  kernels::RingReduction(counting, Collective::kAllReduce,
                         {.ring = {0, num_ranks, kRing}, .shape = {count, plan.chunk_elems, 0}});
  return counting;
}

TEST(ChannelTrafficTest, AllReduceOf4MegabytesOnTwoHostsIsTwoSendsAndTwoReceivesOf2) {
  const size_t count = 1 << 20;
  const ChannelContext context = {2, 2, 1, kSlotBytes};
  const ChannelPlan plan = PlanChannels(context, Collective::kAllReduce, count, 4);
  EXPECT_EQ(plan.channels, 1u);
  const auto counted = Count(plan, 2, count);
  EXPECT_EQ(counted.sent().steps, 2u);
  EXPECT_EQ(counted.sent().elems * 4, 2u * (2 << 20));
  EXPECT_EQ(counted.sent().chunks, 8u);
  EXPECT_EQ(counted.received().steps, 2u);
  EXPECT_EQ(counted.received().elems * 4, 2u * (2 << 20));
  EXPECT_EQ(counted.received().chunks, 8u);
}

}  // namespace
}  // namespace tutti
