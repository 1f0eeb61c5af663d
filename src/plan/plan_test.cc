#include "plan/plan.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

PlanContext OneHost() {
  PlanContext context;
  context.num_ranks = 4;
  context.host.stage_bytes = 128 << 10;
  context.host.slot_bytes = 64 << 10;
  return context;
}

PlanContext Channels() {
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.num_ranks = context.hosts.count = 4;
  context.channel = {.channels = 8, .slot_bytes = 512 << 10, .pair_slot_bytes = 128 << 10};
  return context;
}

CollectiveTask AllReduceOf(size_t count) {
  return {.collective = Collective::kAllReduce, .count = count, .type = DataType::kFloat32};
}

// Counts the questions, and makes rings free.
class Rings final : public CostAdviser {
 public:
  bool Names(Algorithm algorithm) const override { return algorithm == Algorithm::kRing; }
  uint32_t Advise(const AdvisedOperation&, std::span<CostOption> options) override {
    ++asked;
    for (CostOption& option : options)
      if (option.algorithm == Algorithm::kRing) option.us = 0;
    return 0;
  }
  size_t AdviseChunk(const AdvisedOperation&, const CostOption&, uint32_t,
                     size_t chunk_bytes) override {
    return chunk_bytes;
  }
  int asked = 0;
};

TEST(PlannerTest, PlansAsMakePlanDoesWhateverItRemembers) {
  Planner planner(OneHost());
  for (int round = 0; round < 2; ++round)
    for (size_t count = 1; count < 1 << 24; count *= 2)
      for (const Buffers buffers : {Buffers::kOwn, Buffers::kMapped}) {
        const CollectiveTask task = AllReduceOf(count);
        const Plan& plan = planner.For(task, buffers);
        const Plan fresh = MakePlan(OneHost(), QuestionOf(OneHost(), task, buffers));
        EXPECT_EQ(plan.row, fresh.row) << count;
        EXPECT_EQ(plan.protocol, fresh.protocol) << count;
        EXPECT_EQ(plan.chunk_elems, fresh.chunk_elems) << count;
      }
}

TEST(PlannerTest, WishesOfACallAreNotRememberedForOthers) {
  Planner planner(OneHost());
  CollectiveTask wishing = AllReduceOf(2);
  wishing.wishes.algorithms = Bit(Algorithm::kRing);
  EXPECT_EQ(planner.For(AllReduceOf(2)).algorithm(), Algorithm::kOneShot);
  EXPECT_EQ(planner.For(wishing).algorithm(), Algorithm::kRing);
  EXPECT_EQ(planner.For(AllReduceOf(2)).algorithm(), Algorithm::kOneShot);
}

TEST(PlannerTest, AsksATunerEachTimeButNotAboutScatteredBuffers) {
  Rings rings;
  Planner planner(OneHost(), &rings);
  EXPECT_EQ(planner.For(AllReduceOf(2)).algorithm(), Algorithm::kRing);
  EXPECT_EQ(planner.For(AllReduceOf(2)).algorithm(), Algorithm::kRing);
  EXPECT_EQ(rings.asked, 2);
  EXPECT_EQ(planner.For(AllReduceOf(2), Buffers::kScattered).row->where, Where::kStage);
  EXPECT_EQ(rings.asked, 2);
}

TEST(PlannerTest, ScatteredBuffersHaveNoPlanWhereStagesAreNotAllowed) {
  PlanContext context = OneHost();
  ASSERT_TRUE(ApplyAlgorithmList("ring", context).ok());
  EXPECT_EQ(Planner(context).For(AllReduceOf(100), Buffers::kScattered).row, nullptr);
}

TEST(PlannerTest, RefusesDemandsThatNothingServes) {
  const Planner hosts(OneHost()), channels(Channels());
  CollectiveTask task = AllReduceOf(100);
  task.wishes = {.demands_algorithms = true, .algorithms = Bit(Algorithm::kTree)};
  EXPECT_TRUE(hosts.CheckWishes(task).ok());
  task.wishes.algorithms = Bit(Algorithm::kSymmetric);
  EXPECT_EQ(hosts.CheckWishes(task).code(), Code::kInvalidUsage);
  // An AlltoAll over channels is made of messages.
  task.collective = Collective::kAlltoAll;
  EXPECT_EQ(channels.CheckWishes(task).code(), Code::kInvalidUsage);
  task.wishes.algorithms = Bit(Algorithm::kExchange);
  EXPECT_TRUE(channels.CheckWishes(task).ok());
}

TEST(PlannerTest, GpusCountWhatIsOnlyMovedInBytes) {
  CollectiveTask task = AllReduceOf(10);
  EXPECT_EQ(QuestionOf(Channels(), task).count, 10u);
  task.collective = Collective::kAllGather;
  EXPECT_EQ(QuestionOf(Channels(), task).count, 40u);
  EXPECT_EQ(QuestionOf(Channels(), task).type, DataType::kUint8);
  EXPECT_EQ(QuestionOf(OneHost(), task).count, 10u);
}

TEST(PlannerTest, PlansByTheLongestPartThatAllRanksKnow) {
  auto parts = std::make_shared<VariableParts>();
  parts->recvs = {{2, 0, 5, 0}, {0, 9, 2, 20}};
  CollectiveTask task = {.collective = Collective::kAllGatherV, .parts = parts};
  EXPECT_EQ(task.plan_count(), 5u);
  EXPECT_EQ(task.total_count(), 7u);
  EXPECT_EQ(parts->recvs.End(), 7u) << "parts without elements end nowhere";
  EXPECT_FALSE(task.moves_nothing());
  parts->sends = {{3, 0, 0, 5}, {0, 3, 3, 3}};
  task.collective = Collective::kAlltoAllV;
  EXPECT_EQ(task.plan_count(), 0u);
  EXPECT_EQ(task.total_count(), 8u);
  EXPECT_FALSE(task.moves_nothing()) << "only two ranks know each count";
  parts->recvs.counts = {0, 0, 0, 0};
  task.collective = Collective::kReduceScatterV;
  EXPECT_TRUE(task.moves_nothing());
  EXPECT_FALSE(CollectiveTask{.collective = Collective::kBarrier}.moves_nothing());
}

TEST(PlannerTest, PredictsEqualPartsAsTheCollectiveWithASingleCount) {
  auto parts = std::make_shared<VariableParts>();
  parts->sends = parts->recvs = {{5000, 5000, 5000, 5000}, {0, 5000, 10000, 15000}};
  const auto us = [&](const PlanContext& context, Collective equal, Collective variable) {
    CollectiveTask task = {.collective = equal, .count = 5000, .type = DataType::kFloat32};
    const double expected = PredictUs(context, task);
    EXPECT_GT(expected, 0);
    task = {.collective = variable, .type = DataType::kFloat32, .parts = parts};
    EXPECT_DOUBLE_EQ(PredictUs(context, task), expected) << Name(variable);
  };
  us(OneHost(), Collective::kAllGather, Collective::kAllGatherV);
  us(OneHost(), Collective::kReduceScatter, Collective::kReduceScatterV);
  us(Channels(), Collective::kAlltoAll, Collective::kAlltoAllV);
}

TEST(PlannerTest, PredictsMessagesAndNothingOfOneSidedCalls) {
  EXPECT_GT(PredictUs(OneHost(), MessageTask{.is_send = true, .peer = 1, .count = 100}), 0);
  EXPECT_GT(PredictUs(Channels(), MessageTask{.is_send = true, .peer = 1, .count = 100}), 0);
  EXPECT_EQ(PredictUs(OneHost(), OneSidedTask{}), 0);
}

}  // namespace
}  // namespace tutti
