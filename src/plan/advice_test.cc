// How plans of GPUs are cut after a tuner's advice.

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/mesh.h"
#include "plan/plan.h"

namespace tutti {
namespace {

constexpr uint32_t kMostChannels = 8;
constexpr size_t kSlotBytes = 512 << 10;
constexpr size_t kTreeSlotBytes = 64 << 10;
constexpr size_t kKeepChunk = ~size_t{0};

// Wants one algorithm, a number of channels (0: any) and a length of steps.
class Adviser final : public CostAdviser {
 public:
  Adviser(Algorithm algorithm, uint32_t channels, size_t chunk_bytes = kKeepChunk)
      : algorithm_(algorithm), channels_(channels), chunk_bytes_(chunk_bytes) {}

  bool Names(Algorithm algorithm) const override {
    return algorithm == Algorithm::kRing || algorithm == Algorithm::kTree;
  }
  uint32_t Advise(const AdvisedOperation& operation, std::span<CostOption> options) override {
    bytes_told_ = operation.bytes;
    for (CostOption& option : options)
      if (option.algorithm == algorithm_) option.us = 0;
    return channels_;
  }
  size_t AdviseChunk(const AdvisedOperation&, const CostOption&, uint32_t,
                     size_t chunk_bytes) override {
    return chunk_bytes_ == kKeepChunk ? chunk_bytes : chunk_bytes_;
  }
  size_t bytes_told() const { return bytes_told_; }

 private:
  size_t bytes_told_ = 0;
  const Algorithm algorithm_;
  const uint32_t channels_;
  const size_t chunk_bytes_;
};

PlanContext Channels() {
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.num_ranks = context.hosts.count = 5;
  context.channel = {.channels = kMostChannels,
                     .slot_bytes = kSlotBytes,
                     .pair_slot_bytes = 128 << 10,
                     .trees = kMostChannels / 2,
                     .tree_slot_bytes = kTreeSlotBytes};
  return context;
}

Question AllReduceOf(size_t count, DataType type = DataType::kFloat32) {
  return {.collective = Collective::kAllReduce, .count = count, .type = type};
}

// Channels hold all elements, and no channel is empty. Channels and slices are whole lines.
void ExpectGoodCut(const Plan& plan, const Question& question) {
  EXPECT_GE(plan.channels * plan.channel_elems, question.count);
  EXPECT_LT((plan.channels - 1) * plan.channel_elems, question.count);
  EXPECT_EQ(plan.channel_elems * question.elem_bytes() % 16, 0u);
  EXPECT_GT(plan.slice_elems, 0u);
  EXPECT_EQ(plan.slice_elems * question.elem_bytes() % 16, 0u);
  EXPECT_EQ(plan.chunk_elems % plan.slice_elems, 0u);
}

TEST(AdviceTest, CountsTheBytesOfTheLargestBuffer) {
  const auto told = [](Collective collective) {
    Adviser adviser(Algorithm::kRing, 0);
    const Plan plan =
        MakePlan(MeshContextFor(4, 132, GpuReach::kNvlink),
                 {.collective = collective, .count = 1000, .type = DataType::kUint8}, &adviser);
    EXPECT_NE(plan.row, nullptr);
    return adviser.bytes_told();
  };
  for (const Collective one : {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast})
    EXPECT_EQ(told(one), 1000u) << Name(one);
  for (const Collective parts : {Collective::kAllGather, Collective::kReduceScatter,
                                 Collective::kAlltoAll, Collective::kGather, Collective::kScatter})
    EXPECT_EQ(told(parts), 4000u) << Name(parts);
}

TEST(AdviceTest, CutsChannelsAndStepsIntoWholeLines) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree})
    for (const DataType type : {DataType::kUint8, DataType::kFloat16, DataType::kFloat64})
      for (const size_t count : {1, 1000, 3'000'001})
        for (const uint32_t channels : {0u, 1u, 2u, 3u, 5u, 7u, 8u, 100u})
          for (const size_t chunk : {kKeepChunk, size_t{0}, size_t{1000}, size_t{1} << 40}) {
            Adviser adviser(algorithm, channels, chunk);
            const Question question = AllReduceOf(count, type);
            const Plan plan = MakePlan(Channels(), question, &adviser);
            EXPECT_EQ(plan.algorithm(), algorithm);
            ExpectGoodCut(plan, question);
            const bool is_tree = algorithm == Algorithm::kTree;
            EXPECT_LE(plan.slice_elems * SizeOf(type), is_tree ? kTreeSlotBytes : kSlotBytes);
            EXPECT_EQ(plan.chunk_elems / plan.slice_elems, is_tree ? 1u : 4u);
            if (channels == 0 || count < 3'000'001) continue;
            const uint32_t wanted = std::min(channels, kMostChannels);
            EXPECT_EQ(plan.channels, is_tree ? std::max(wanted / 2, 1u) : wanted);
          }
}

TEST(AdviceTest, StepsAreAsLongAsATunerWants) {
  Adviser adviser(Algorithm::kRing, 2, 64 << 10);
  EXPECT_EQ(MakePlan(Channels(), AllReduceOf(1 << 20), &adviser).chunk_elems * 4, 64u << 10);
  const PlanContext mesh = MeshContextFor(4, 132, GpuReach::kNvlink);
  EXPECT_EQ(MakePlan(mesh, AllReduceOf(1 << 24), &adviser).chunk_elems * 4,
            std::min(mesh.mesh.ring_slot_bytes, mesh.mesh.costs.max_ring_chunk_bytes));
  Adviser shorter(Algorithm::kRing, 2, 1000);
  EXPECT_EQ(MakePlan(mesh, AllReduceOf(1 << 24), &shorter).chunk_elems * 4, 992u);
}

TEST(AdviceTest, BlocksOfAMeshAreAsManyAsATunerWants) {
  const PlanContext context = MeshContextFor(4, 132, GpuReach::kNvlink);
  for (const uint32_t blocks : {1u, 3u, 17u, 1000u})
    for (const size_t count : {1u << 12, 1u << 24}) {
      Adviser ring(Algorithm::kRing, blocks);
      const Question question = AllReduceOf(count);
      const Plan plan = MakePlan(context, question, &ring);
      EXPECT_EQ(plan.algorithm(), Algorithm::kRing);
      ExpectGoodCut(plan, question);
      EXPECT_LE(plan.channels, std::min(blocks, context.mesh.max_blocks));
      if (count == 1 << 24 && blocks < 1000) {
        EXPECT_EQ(plan.channels, blocks);
      }
    }
}

// LL moves one piece in each block, and few blocks have no room for many pieces.
TEST(AdviceTest, BlocksAreKeptWhereTheProtocolNeedsThem) {
  const PlanContext context = MeshContextFor(4, 132, GpuReach::kNvlink);
  const Question question = AllReduceOf(4096);
  const Plan usual = MakePlan(context, question);
  ASSERT_EQ(usual.protocol, Protocol::kLL);
  ASSERT_GT(usual.channels, 1u);
  for (const auto& [wanted, expected] :
       {std::pair{1u, usual.channels}, std::pair{usual.channels + 1, usual.channels + 1}}) {
    Adviser adviser(Algorithm::kTree, wanted);  // A mesh has no tree.
    const Plan plan = MakePlan(context, question, &adviser);
    EXPECT_EQ(plan.row, usual.row);
    EXPECT_EQ(plan.protocol, Protocol::kLL);
    EXPECT_EQ(plan.channels, expected);
  }
}

TEST(AdviceTest, ACallsWishForFewerChannelsIsStronger) {
  Adviser adviser(Algorithm::kRing, 8);
  for (const PlanContext& context : {Channels(), MeshContextFor(4, 132, GpuReach::kNvlink)}) {
    Question question = AllReduceOf(1 << 24);
    question.most_channels = 3;
    EXPECT_EQ(MakePlan(context, question, &adviser).channels, 3u);
  }
}

// A tuner that wants rings gets the ring in rank order, and a tuner that wants trees gets no tree.
TEST(AdviceTest, TheOrderOfTheRanksIsStronger) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree})
    for (const PlanContext& context : {Channels(), MeshContextFor(4, 132, GpuReach::kNvlink)}) {
      Adviser adviser(algorithm, 5, 1000);
      for (const Collective collective : {Collective::kAllReduce, Collective::kReduceScatter}) {
        Question question = AllReduceOf(1 << 20);
        question.collective = collective;
        question.order = OrderOf(DataType::kFloat32, ReduceKind::kSum);
        const Plan plan = MakePlan(context, question, &adviser);
        ASSERT_NE(plan.row, nullptr);
        EXPECT_TRUE(KeepsOrder(*plan.row, question.order, context.num_ranks));
        ExpectGoodCut(plan, question);
      }
    }
}

TEST(AdviceTest, PlansThatDifferHaveOtherHashes) {
  Adviser one(Algorithm::kRing, 1), two(Algorithm::kRing, 2), tree(Algorithm::kTree, 2);
  const auto hash = [](CostAdviser& adviser) {
    return HashOf(MakePlan(Channels(), AllReduceOf(1 << 20), &adviser));
  };
  EXPECT_EQ(hash(one), hash(one));
  EXPECT_NE(hash(one), hash(two));
  EXPECT_NE(hash(two), hash(tree));
}

}  // namespace
}  // namespace tutti
