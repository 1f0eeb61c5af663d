#include "plan/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "connection/inline_bytes.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

PlanContext OneHost(int num_ranks) {
  PlanContext context;
  context.num_ranks = num_ranks;
  context.stage_bytes = 128 << 10;
  context.slot_bytes = 64 << 10;
  return context;
}

PlanContext TwoHosts(int num_ranks) {
  PlanContext context = OneHost(num_ranks);
  context.one_host = false;
  context.stage_bytes = 0;
  context.slot_bytes = 512 << 10;
  return context;
}

Algorithm AlgorithmOf(const PlanContext& context, Collective collective, size_t count) {
  return Choose(context, collective, count, 4).algorithm;
}

TEST(ChooseTest, StagesSmallOperationsOfOneHost) {
  for (const int ranks : {4, 7}) {
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kBroadcast, Collective::kReduce,
          Collective::kAllGather, Collective::kReduceScatter, Collective::kAlltoAll,
          Collective::kBarrier}) {
      EXPECT_EQ(AlgorithmOf(OneHost(ranks), collective, 1), Algorithm::kOneShot)
          << Name(collective) << " of " << ranks;
    }
    EXPECT_EQ(AlgorithmOf(OneHost(ranks), Collective::kGather, 1), Algorithm::kExchange);
  }
}

TEST(ChooseTest, SynchronisesHostsPairwise) {
  for (const int ranks : {2, 3, 7})
    EXPECT_EQ(AlgorithmOf(TwoHosts(ranks), Collective::kBarrier, 0), Algorithm::kRecursiveDoubling);
}

TEST(ChooseTest, SharesTheReductionOfLongVectors) {
  EXPECT_EQ(AlgorithmOf(OneHost(7), Collective::kAllReduce, 1 << 11), Algorithm::kTwoShot);
  EXPECT_EQ(AlgorithmOf(TwoHosts(4), Collective::kAllReduce, 1 << 24), Algorithm::kRing);
}

TEST(ChooseTest, TakesFewHopsBetweenHostsForSmallVectors) {
  const Algorithm small = AlgorithmOf(TwoHosts(16), Collective::kAllReduce, 1);
  EXPECT_TRUE(small == Algorithm::kRecursiveDoubling || small == Algorithm::kTree) << Name(small);
  EXPECT_LT(PredictUs(TwoHosts(16), Collective::kAllReduce, small, 4),
            PredictUs(TwoHosts(16), Collective::kAllReduce, Algorithm::kRing, 4));
}

// A ring leaves a host once, whatever the number of its ranks; partners of recursive doubling all
// send at once.
TEST(ChooseTest, RanksShareAPortWhereAllSendAtOnce) {
  PlanContext alone = TwoHosts(16);
  alone.network_gbps = 2;
  PlanContext shared = alone;
  shared.ranks_per_port = 8;
  const auto us = [](const PlanContext& context, Algorithm algorithm) {
    return PredictUs(context, Collective::kAllReduce, algorithm, 1e8);
  };
  EXPECT_EQ(us(shared, Algorithm::kRing), us(alone, Algorithm::kRing));
  EXPECT_EQ(us(shared, Algorithm::kTree), us(alone, Algorithm::kTree));
  EXPECT_NEAR(us(shared, Algorithm::kRecursiveDoubling) / us(alone, Algorithm::kRecursiveDoubling),
              8, 0.1);
}

TEST(ChooseTest, PredictsTheTimeOfItsChoiceAndNoShorterOneExists) {
  for (const PlanContext& context : {OneHost(2), OneHost(5), TwoHosts(2), TwoHosts(9)}) {
    for (size_t count = 1; count <= 1 << 26; count *= 8) {
      const Choice choice = Choose(context, Collective::kAllReduce, count, 4);
      for (int a = 0; a < kNumAlgorithms; ++a) {
        const auto algorithm = static_cast<Algorithm>(a);
        // Between hosts these two are taken only where they are asked for.
        const bool free = context.one_host ||
                          (algorithm != Algorithm::kOneShot && algorithm != Algorithm::kTwoShot);
        if (!free) continue;
        EXPECT_LE(choice.time_us, PredictUs(context, Collective::kAllReduce, algorithm,
                                            4.0 * static_cast<double>(count)));
      }
    }
  }
}

TEST(ChooseTest, CutsIntoPiecesThatFitTheirPlace) {
  for (const size_t elem_bytes : {1u, 2u, 4u, 8u}) {
    for (size_t count = 1; count < 1 << 26; count = count * 5 + 1) {
      for (int c = 0; c < kNumCollectives; ++c) {
        const auto collective = static_cast<Collective>(c);
        const PlanContext context = TwoHosts(3);
        const Choice net = Choose(context, collective, count, elem_bytes);
        EXPECT_LE(net.slice_elems * elem_bytes, context.slot_bytes);
        EXPECT_GE(net.slice_elems, 1u);
        if (net.protocol == Protocol::kLL) {
          EXPECT_LE(net.slice_elems * elem_bytes, kInlineBytes);
        }
        const Choice local = Choose(OneHost(3), collective, count, elem_bytes);
        if (local.algorithm == Algorithm::kOneShot || local.algorithm == Algorithm::kTwoShot) {
          const bool parts = collective == Collective::kReduceScatter ||
                             collective == Collective::kReduceScatterV ||
                             collective == Collective::kAlltoAll;
          EXPECT_LE(local.chunk_elems * elem_bytes * (parts ? 3 : 1), OneHost(3).stage_bytes);
        }
      }
    }
  }
}

// A 4 MB AllReduce between two hosts is one step of 2 MB there and one back.
TEST(ChooseTest, CutsFourMegabytesBetweenTwoHostsInHalves) {
  PlanContext context = TwoHosts(2);
  ASSERT_TRUE(ApplyAlgorithmList("ring", context).ok());
  const Choice choice = Choose(context, Collective::kAllReduce, 1 << 20, 4);
  EXPECT_EQ(choice.chunk_elems, size_t{1} << 19);
}

TEST(ChooseTest, PullsLargeBuffersAndNeverBetweenHosts) {
  EXPECT_FALSE(ShouldPull(OneHost(2), Collective::kAllReduce, 4096, true));
  EXPECT_TRUE(ShouldPull(OneHost(2), Collective::kAllReduce, 1 << 20, true));
  EXPECT_FALSE(ShouldPull(OneHost(2), Collective::kAllReduce, 1 << 20, false));
  EXPECT_TRUE(ShouldPull(OneHost(2), Collective::kBroadcast, 1 << 20, false));
  EXPECT_FALSE(ShouldPull(TwoHosts(2), Collective::kBroadcast, 1 << 20, true));
}

TEST(AlgorithmListTest, RestrictsAllOrOneCollective) {
  PlanContext context = OneHost(4);
  ASSERT_TRUE(ApplyAlgorithmList("Ring", context).ok());
  EXPECT_EQ(AlgorithmOf(context, Collective::kAllReduce, 1), Algorithm::kRing);
  ASSERT_TRUE(ApplyAlgorithmList("^oneshot,TWOSHOT;broadcast:ring", context).ok());
  EXPECT_NE(AlgorithmOf(context, Collective::kAllReduce, 1), Algorithm::kOneShot);
  EXPECT_EQ(AlgorithmOf(context, Collective::kBroadcast, 1), Algorithm::kRing);
  // What leaves nothing for a collective does not apply to it.
  ASSERT_TRUE(ApplyAlgorithmList("tree,nvls", context).ok());
  EXPECT_EQ(AlgorithmOf(context, Collective::kAllReduce, 1), Algorithm::kTree);
  EXPECT_EQ(AlgorithmOf(context, Collective::kAllGather, 1), Algorithm::kOneShot);
}

TEST(AlgorithmListTest, RestrictsProtocols) {
  PlanContext context = TwoHosts(4);
  EXPECT_EQ(Choose(context, Collective::kAllReduce, 1 << 20, 4).protocol, Protocol::kSimple);
  ASSERT_TRUE(ApplyProtocolList("broadcast:LL;allreduce:^Simple", context).ok());
  EXPECT_EQ(Choose(context, Collective::kAllReduce, 1 << 20, 4).protocol, Protocol::kLL);
  EXPECT_EQ(Choose(context, Collective::kBroadcast, 1 << 20, 4).protocol, Protocol::kLL);
  EXPECT_EQ(Choose(context, Collective::kAllGather, 1 << 20, 4).protocol, Protocol::kSimple);
  ASSERT_TRUE(ApplyProtocolList("LL128", context).ok());
  EXPECT_EQ(Choose(context, Collective::kAllGather, 1 << 20, 4).protocol, Protocol::kSimple);
}

TEST(AlgorithmListTest, NamesWhatItDoesNotKnow) {
  PlanContext context;
  EXPECT_THAT(std::string(ApplyAlgorithmList("rings", context).message()), HasSubstr("\"rings\""));
  EXPECT_THAT(std::string(ApplyAlgorithmList("reduceall:ring", context).message()),
              HasSubstr("\"reduceall\" is no collective"));
  EXPECT_THAT(std::string(ApplyProtocolList("fast", context).message()),
              HasSubstr("NCCL_PROTO: \"fast\""));
}

}  // namespace
}  // namespace tutti
