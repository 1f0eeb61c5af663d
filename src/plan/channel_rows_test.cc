#include <gtest/gtest.h>

#include <algorithm>

#include "plan/plan.h"

namespace tutti {
namespace {

constexpr size_t kSlotBytes = 512 << 10;

constexpr Collective kMost[] = {Collective::kAllReduce, Collective::kReduce, Collective::kAllGather,
                                Collective::kReduceScatter};

PlanContext ContextOf(int num_ranks, int num_hosts, uint32_t channels) {
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.num_ranks = num_ranks;
  context.hosts.count = num_hosts;
  context.channel.channels = channels;
  context.channel.slot_bytes = kSlotBytes;
  return context;
}

Question QuestionFor(Collective collective, size_t count, DataType type,
                     ReductionOrder order = ReductionOrder::kAny) {
  return {.collective = collective, .count = count, .type = type, .order = order};
}

Plan PlanOf(const PlanContext& context, Collective collective, size_t count, DataType type,
            ReductionOrder order = ReductionOrder::kAny) {
  return MakePlan(context, QuestionFor(collective, count, type, order));
}

double UsOf(const PlanContext& context, Collective collective, size_t count, DataType type) {
  return PredictUs(context, QuestionFor(collective, count, type));
}

// Four ranks on two hosts.
PlanContext TwoByTwo(uint32_t channels) {
  PlanContext context = ContextOf(4, 2, channels);
  context.channel.local_ranks = context.hosts.most = 2;
  return context;
}

TEST(ChannelPlanTest, ChannelsShareOutAllElements) {
  for (const DataType type : {DataType::kUint8, DataType::kFloat16, DataType::kFloat64})
    for (const size_t count : {1, 7, 1000, 100000, 3000001})
      for (const uint32_t channels : {1, 3, 8})
        for (const Collective collective : kMost)
          for (const PlanContext& context : {ContextOf(3, 2, channels), TwoByTwo(channels)}) {
            const Plan plan = PlanOf(context, collective, count, type);
            EXPECT_LE(plan.channels, channels);
            EXPECT_GE(plan.channels * plan.channel_elems, count);
            EXPECT_LT((plan.channels - 1) * plan.channel_elems, count);
            EXPECT_EQ(plan.channel_elems * SizeOf(type) % 16, 0u);
            EXPECT_GE(plan.slice_elems, 1u);
            EXPECT_LE(plan.slice_elems * SizeOf(type), kSlotBytes);
          }
}

TEST(ChannelPlanTest, AStepLeavesRoomInTheFifo) {
  const Plan plan =
      PlanOf(ContextOf(4, 2, 1), Collective::kAllReduce, 100 << 20, DataType::kFloat32);
  EXPECT_EQ(plan.algorithm(), Algorithm::kRing);
  EXPECT_LE(plan.chunk_elems, 4 * plan.slice_elems);
  const Plan two_level = PlanOf(TwoByTwo(1), Collective::kAllReduce, 100 << 20, DataType::kFloat32);
  EXPECT_EQ(two_level.algorithm(), Algorithm::kTwoLevel);
  EXPECT_LE(two_level.chunk_elems, 2 * two_level.slice_elems);
}

TEST(ChannelPlanTest, TwoLevelsServeHostsOfEquallyManyRanksThatNeedNoOrder) {
  const auto algorithm = [](const PlanContext& context, Collective collective,
                            ReductionOrder order = ReductionOrder::kAny) {
    return PlanOf(context, collective, 1 << 20, DataType::kFloat32, order).algorithm();
  };
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    EXPECT_EQ(algorithm(TwoByTwo(8), collective), Algorithm::kTwoLevel);
    EXPECT_EQ(algorithm(ContextOf(4, 2, 8), collective), Algorithm::kRing);
  }
  EXPECT_EQ(algorithm(TwoByTwo(8), Collective::kBroadcast), Algorithm::kRing);
  EXPECT_EQ(algorithm(TwoByTwo(8), Collective::kReduce), Algorithm::kRing);
  const Plan ordered = PlanOf(TwoByTwo(8), Collective::kAllReduce, 1 << 20, DataType::kFloat32,
                              ReductionOrder::kByRank);
  EXPECT_EQ(ordered.algorithm(), Algorithm::kRing);
  EXPECT_TRUE(ordered.row->order == AddingOrder::kRankOrder);
}

// Among many hosts trees take the fewest steps, and rings and rails send the fewest bytes by each
// connection.
TEST(ChannelPlanTest, TreesServeAllReducesOfMiddleSizesOnManyHosts) {
  PlanContext context = ContextOf(128, 16, 8);
  context.channel.local_ranks = context.hosts.most = 8;
  context.channel.trees = 4;
  context.channel.tree_slot_bytes = 64 << 10;
  const auto plan = [&](size_t count, ReductionOrder order = ReductionOrder::kAny) {
    return PlanOf(context, Collective::kAllReduce, count, DataType::kFloat32, order);
  };
  for (const size_t count : {1u, 1000u, 100'000u}) {
    const Plan tree = plan(count);
    EXPECT_EQ(tree.algorithm(), Algorithm::kTree) << count;
    EXPECT_LE(tree.channels, 4u);
    EXPECT_GE(tree.channels * tree.channel_elems, count);
    EXPECT_LT((tree.channels - 1) * tree.channel_elems, count);
    EXPECT_LE(tree.slice_elems * 4, context.channel.tree_slot_bytes);
  }
  EXPECT_EQ(plan(64 << 20).algorithm(), Algorithm::kTwoLevel);
  EXPECT_EQ(plan(1000, ReductionOrder::kByRank).algorithm(), Algorithm::kRing);
  // Among few ranks nothing else may be left.
  PlanContext few = context;
  few.num_ranks = few.hosts.count = 4;
  few.channel.local_ranks = 0;
  few.hosts.most = 1;
  EXPECT_EQ(PlanOf(few, Collective::kAllReduce, 1000, DataType::kFloat32).algorithm(),
            Algorithm::kRing);
  ASSERT_TRUE(ApplyAlgorithmList("tree", few).ok());
  EXPECT_EQ(PlanOf(few, Collective::kAllReduce, 1000, DataType::kFloat32).algorithm(),
            Algorithm::kTree);
  few.allowed_algorithms = {};
  ASSERT_TRUE(ApplyAlgorithmList("ring,tree", few).ok());
  EXPECT_EQ(PlanOf(few, Collective::kAllReduce, 1000, DataType::kFloat32).algorithm(),
            Algorithm::kRing);
  // A tree takes two channels.
  context.channel.channels = 1;
  EXPECT_NE(plan(1000).algorithm(), Algorithm::kTree);
}

TEST(ChannelPlanTest, ShortReductionsAmongFewRanksGoInOneShot) {
  const auto algorithm = [](PlanContext context, Collective collective, size_t count,
                            ReductionOrder order = ReductionOrder::kAny) {
    context.channel.pair_slot_bytes = 128 << 10;
    return PlanOf(context, collective, count, DataType::kFloat32, order).algorithm();
  };
  for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
    for (const ReductionOrder order : {ReductionOrder::kAny, ReductionOrder::kByRankRoundedOnce})
      EXPECT_EQ(algorithm(ContextOf(4, 4, 8), collective, 1000, order), Algorithm::kOneShot);
    EXPECT_EQ(algorithm(ContextOf(4, 4, 8), collective, 16 << 20), Algorithm::kRing);
    // A kernel's arguments have no room for the FIFOs of nine ranks.
    EXPECT_EQ(algorithm(ContextOf(9, 9, 8), collective, 1000), Algorithm::kRing);
  }
  // Down a chain, ranks other than the root need not wait for one another.
  EXPECT_EQ(algorithm(ContextOf(4, 4, 8), Collective::kReduce, 1000), Algorithm::kRing);
  EXPECT_EQ(
      PlanOf(ContextOf(4, 4, 8), Collective::kAllReduce, 1000, DataType::kFloat32).algorithm(),
      Algorithm::kRing)
      << "without FIFOs between all pairs";
  PlanContext restricted = ContextOf(4, 4, 8);
  ASSERT_TRUE(ApplyAlgorithmList("oneshot", restricted).ok());
  restricted.channel.pair_slot_bytes = 1 << 10;
  const Plan plan = PlanOf(restricted, Collective::kAllReduce, 1 << 20, DataType::kFloat16);
  EXPECT_EQ(plan.algorithm(), Algorithm::kOneShot);
  EXPECT_EQ(plan.channels, 1u);
  EXPECT_EQ(plan.chunk_elems, 512u) << "a round is a slot";
}

TEST(ChannelPlanTest, ShortDataThatAreNotAddedGoFromPairToPair) {
  const auto algorithm = [](PlanContext context, Collective collective, size_t bytes) {
    context.channel.pair_slot_bytes = 128 << 10;
    return PlanOf(context, collective, bytes, DataType::kUint8).algorithm();
  };
  for (const Collective collective : {Collective::kAllGather, Collective::kBroadcast}) {
    EXPECT_EQ(algorithm(ContextOf(4, 4, 8), collective, 4000), Algorithm::kExchange);
    EXPECT_EQ(algorithm(ContextOf(4, 4, 8), collective, 64 << 20), Algorithm::kRing);
    EXPECT_EQ(algorithm(ContextOf(9, 9, 8), collective, 4000), Algorithm::kRing);
  }
  // By two levels fewer bytes pass the network, in more steps.
  PlanContext rails = TwoByTwo(8);
  EXPECT_EQ(algorithm(rails, Collective::kAllGather, 4000), Algorithm::kExchange);
  EXPECT_EQ(algorithm(rails, Collective::kAllGather, 256 << 10), Algorithm::kTwoLevel);
  ASSERT_TRUE(ApplyAlgorithmList("exchange", rails).ok());
  EXPECT_EQ(algorithm(rails, Collective::kAllGather, 64 << 20), Algorithm::kExchange);
}

// Where the NICs are slow, the data that all ranks of a host send to other hosts take the most
// time.
TEST(ChannelPlanTest, NicsCarryWhatAllRanksOfAHostSend) {
  constexpr size_t kBytes = 8 << 20;
  const auto us = [&](const char* algorithm, Collective collective) {
    PlanContext context = TwoByTwo(8);
    context.channel.pair_slot_bytes = 128 << 10;
    context.channel.network_bytes_per_us = 100;
    EXPECT_TRUE(ApplyAlgorithmList(algorithm, context).ok());
    return UsOf(context, collective, kBytes, DataType::kUint8) * 100 / kBytes;
  };
  EXPECT_NEAR(us("oneshot", Collective::kAllReduce), 4, 0.1) << "two ranks, to two each";
  EXPECT_NEAR(us("exchange", Collective::kAllGather), 4, 0.1);
  EXPECT_NEAR(us("exchange", Collective::kBroadcast), 2, 0.1) << "the root, to two";
  EXPECT_NEAR(us("twolevel", Collective::kAllReduce), 1, 0.1);
  EXPECT_NEAR(us("twolevel", Collective::kAllGather), 2, 0.1);
}

TEST(ChannelPlanTest, ListsOfAlgorithmsAreKept) {
  PlanContext context = TwoByTwo(8);
  ASSERT_TRUE(ApplyAlgorithmList("allreduce:ring;allgather:^ring", context).ok());
  const auto algorithm = [&](Collective collective) {
    return PlanOf(context, collective, 1 << 20, DataType::kUint8).algorithm();
  };
  EXPECT_EQ(algorithm(Collective::kAllReduce), Algorithm::kRing);
  EXPECT_EQ(algorithm(Collective::kAllGather), Algorithm::kTwoLevel);
  // The name of an algorithm has no effect on a collective that the algorithm does not serve.
  ASSERT_TRUE(ApplyAlgorithmList("tree;broadcast:twolevel", context).ok());
  EXPECT_EQ(algorithm(Collective::kAllReduce), Algorithm::kTwoLevel);
  EXPECT_EQ(algorithm(Collective::kBroadcast), Algorithm::kRing);
  EXPECT_FALSE(ApplyAlgorithmList("nonsense", context).ok());
}

// By two levels a host sends less in all, and takes less time whatever the size.
TEST(ChannelPlanTest, TwoLevelsTakeLessTime) {
  for (const size_t count : {1u, 1u << 10, 1u << 20, 1u << 28})
    EXPECT_LT(UsOf(TwoByTwo(8), Collective::kAllReduce, count, DataType::kFloat32),
              UsOf(ContextOf(4, 2, 8), Collective::kAllReduce, count, DataType::kFloat32));
}

TEST(ChannelPlanTest, ASlotHasRoomForTheSumsOfNarrowElements) {
  for (const DataType type : {DataType::kFloat8e4m3, DataType::kFloat16, DataType::kFloat64}) {
    const size_t sum_bytes = std::max<size_t>(4, SizeOf(type));
    for (const size_t count : {1, 1000, 3000001})
      for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
        const Plan plan =
            PlanOf(ContextOf(5, 2, 3), collective, count, type, ReductionOrder::kByRankRoundedOnce);
        EXPECT_TRUE(plan.row->order == AddingOrder::kRankOrder);
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
