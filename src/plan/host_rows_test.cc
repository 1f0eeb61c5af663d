
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "connection/inline_bytes.h"
#include "plan/cost_table.h"
#include "plan/testing/plan_by_size.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;

PlanContext OneHost(int num_ranks) {
  PlanContext context;
  context.num_ranks = num_ranks;
  context.host.stage_bytes = 128 << 10;
  context.host.slot_bytes = 64 << 10;
  return context;
}

PlanContext TwoHosts(int num_ranks) {
  PlanContext context = OneHost(num_ranks);
  context.host.one_host = false;
  context.host.stage_bytes = 0;
  context.host.slot_bytes = 512 << 10;
  return context;
}

double UsOf(const PlanContext& context, Collective collective, Algorithm algorithm, double bytes) {
  return PredictUs(context, {.collective = collective, .count = static_cast<size_t>(bytes)},
                   algorithm);
}

Algorithm AlgorithmOf(const PlanContext& context, Collective collective, size_t count) {
  return PlanFor(context, collective, count, 4).algorithm();
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
  EXPECT_LT(UsOf(TwoHosts(16), Collective::kAllReduce, small, 4),
            UsOf(TwoHosts(16), Collective::kAllReduce, Algorithm::kRing, 4));
}

// Between hosts, small blocks go to ranks farther and farther away, and large blocks go round the
// ring. Between two ranks both ways send the same messages.
TEST(ChooseTest, SwapsSmallBlocksBetweenManyRanksOfSeveralHosts) {
  for (const int ranks : {4, 8, 64}) {
    const PlanContext context = TwoHosts(ranks);
    EXPECT_EQ(AlgorithmOf(context, Collective::kAllGather, 16), Algorithm::kRecursiveDoubling);
    EXPECT_EQ(AlgorithmOf(context, Collective::kReduceScatter, 16), Algorithm::kRecursiveHalving);
    EXPECT_EQ(AlgorithmOf(context, Collective::kAllGather, 1 << 22), Algorithm::kRing);
    EXPECT_EQ(AlgorithmOf(context, Collective::kReduceScatter, 1 << 22), Algorithm::kRing);
    EXPECT_EQ(AlgorithmOf(OneHost(ranks), Collective::kAllGather, 16), Algorithm::kOneShot);
  }
  EXPECT_EQ(AlgorithmOf(TwoHosts(2), Collective::kReduceScatter, 1 << 12), Algorithm::kRing);
}

// With 1 ms from host to host a ring of four ranks crosses twice where pairs of ranks cross once.
// Long vectors go round the ring all the same, because their bytes count for more.
TEST(ChooseTest, CrossesFarNetworksAsSeldomAsSizesAllow) {
  PlanContext near = TwoHosts(4);
  near.hosts = {.count = 2, .even = true, .in_order = true};
  near.host.ranks_per_nic = 2;
  PlanContext far = near;
  far.host.network_us = 1024;
  for (const size_t count : {size_t{1} << 8, size_t{1} << 13}) {
    EXPECT_EQ(AlgorithmOf(far, Collective::kAllGather, count), Algorithm::kRecursiveDoubling);
    EXPECT_EQ(AlgorithmOf(far, Collective::kReduceScatter, count), Algorithm::kRecursiveHalving);
    EXPECT_EQ(AlgorithmOf(far, Collective::kAllReduce, count), Algorithm::kRecursiveDoubling);
  }
  EXPECT_EQ(AlgorithmOf(near, Collective::kReduceScatter, 1 << 13), Algorithm::kRing);
  for (const Collective collective :
       {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce})
    EXPECT_EQ(AlgorithmOf(far, collective, 1 << 17), Algorithm::kRing) << Name(collective);
  const double us = UsOf(far, Collective::kAllGather, Algorithm::kRing, 64) -
                    UsOf(near, Collective::kAllGather, Algorithm::kRing, 64);
  EXPECT_NEAR(us, 2048, 1);
}

// Two hosts of four ranks: the number of passages between the hosts and their bytes decide.
TEST(ChooseTest, TakesTwoLevelsWhereHostsHaveSeveralRanks) {
  PlanContext far = TwoHosts(8);
  far.hosts = {.count = 2, .even = true, .in_order = true, .fewest = 4, .most = 4};
  far.host.ranks_per_nic = 4;
  far.host.network_us = 1024;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
    for (const size_t count : {1u, 1u << 8, 1u << 12, 1u << 16, 1u << 18})
      EXPECT_EQ(AlgorithmOf(far, collective, count), Algorithm::kTwoLevel)
          << Name(collective) << " of " << count;
  }
  EXPECT_EQ(AlgorithmOf(far, Collective::kBarrier, 0), Algorithm::kTwoLevel);
  // Short blocks to all ranks travel together, and long blocks travel alone.
  EXPECT_EQ(AlgorithmOf(far, Collective::kAlltoAll, 1 << 5), Algorithm::kTwoLevel);
  EXPECT_EQ(AlgorithmOf(far, Collective::kAlltoAll, 1 << 18), Algorithm::kExchange);
  PlanContext alone = far;
  alone.hosts = {.count = 8, .even = true, .in_order = true};
  EXPECT_NE(AlgorithmOf(alone, Collective::kAllReduce, 1), Algorithm::kTwoLevel);
  ASSERT_TRUE(ApplyAlgorithmList("twolevel", alone).ok());
  EXPECT_NE(AlgorithmOf(alone, Collective::kAllReduce, 1), Algorithm::kTwoLevel)
      << "no host has several ranks";
}

// Short messages go by one rank of each host. Of long messages every rank sends a share.
TEST(ChooseTest, SharesLongMessagesBetweenHostsAmongTheirRanks) {
  PlanContext context = TwoHosts(7);
  context.hosts = {.count = 2, .fewest = 3, .most = 4};
  ASSERT_TRUE(ApplyAlgorithmList("twolevel", context).ok());
  const auto owners = [&](Collective collective, size_t bytes) {
    return PlanFor(context, collective, bytes, 1).owners;
  };
  EXPECT_EQ(owners(Collective::kAllReduce, 1), 1);
  EXPECT_EQ(owners(Collective::kAllReduce, 2 * kOwnerBytes), 2);
  EXPECT_EQ(owners(Collective::kAllReduce, 100 * kOwnerBytes), 3);
  EXPECT_EQ(owners(Collective::kAllGather, kOwnerBytes / 4), 1);
  EXPECT_EQ(owners(Collective::kReduceScatter, kOwnerBytes / 2), 2);
}

// A ring leaves a host once, whatever the number of its ranks; partners of recursive doubling all
// send at once.
TEST(ChooseTest, RanksShareANicWhereAllSendAtOnce) {
  PlanContext alone = TwoHosts(16);
  alone.host.network_gbps = 2;
  PlanContext shared = alone;
  shared.host.ranks_per_nic = 8;
  const auto us = [](const PlanContext& context, Algorithm algorithm) {
    return UsOf(context, Collective::kAllReduce, algorithm, 1e8);
  };
  EXPECT_EQ(us(shared, Algorithm::kRing), us(alone, Algorithm::kRing));
  EXPECT_EQ(us(shared, Algorithm::kTree), us(alone, Algorithm::kTree));
  EXPECT_NEAR(us(shared, Algorithm::kRecursiveDoubling) / us(alone, Algorithm::kRecursiveDoubling),
              8, 0.1);
}

TEST(ChooseTest, PredictsTheTimeOfItsChoiceAndNoShorterOneExists) {
  // The choice for two ranks on two hosts was measured: the table has the rates of more ranks.
  for (const PlanContext& context : {OneHost(2), OneHost(5), TwoHosts(3), TwoHosts(9)}) {
    for (size_t count = 1; count <= 1 << 26; count *= 8) {
      const Plan choice = PlanFor(context, Collective::kAllReduce, count, 4);
      for (int a = 0; a < kNumAlgorithms; ++a) {
        const auto algorithm = static_cast<Algorithm>(a);
        // Between hosts these algorithms are taken only on request.
        const bool free = context.host.one_host ||
                          (algorithm != Algorithm::kOneShot && algorithm != Algorithm::kTwoShot);
        if (!free) continue;
        EXPECT_LE(choice.us, UsOf(context, Collective::kAllReduce, algorithm,
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
        const Plan net = PlanFor(context, collective, count, elem_bytes);
        EXPECT_LE(net.slice_elems * elem_bytes, context.host.slot_bytes);
        EXPECT_GE(net.slice_elems, 1u);
        if (net.protocol == Protocol::kLL) {
          EXPECT_LE(net.slice_elems * elem_bytes, kInlineBytes);
        }
        const Plan local = PlanFor(OneHost(3), collective, count, elem_bytes);
        if (local.algorithm() == Algorithm::kOneShot || local.algorithm() == Algorithm::kTwoShot) {
          const bool parts = collective == Collective::kReduceScatter ||
                             collective == Collective::kReduceScatterV ||
                             collective == Collective::kAlltoAll;
          EXPECT_LE(local.chunk_elems * elem_bytes * (parts ? 3 : 1), OneHost(3).host.stage_bytes);
        }
      }
    }
  }
}

// A 4 MB AllReduce between two hosts is a step of 2 MB in each direction.
TEST(ChooseTest, CutsFourMegabytesBetweenTwoHostsInHalves) {
  PlanContext context = TwoHosts(2);
  ASSERT_TRUE(ApplyAlgorithmList("ring", context).ok());
  const Plan choice = PlanFor(context, Collective::kAllReduce, 1 << 20, 4);
  EXPECT_EQ(choice.chunk_elems, size_t{1} << 19);
}

TEST(ChooseTest, TwoRanksOnTwoHostsReduceLongVectorsInOneShot) {
  const auto algorithm = [](int ranks, size_t bytes) {
    return AlgorithmOf(TwoHosts(ranks), Collective::kAllReduce, bytes / 4);
  };
  EXPECT_EQ(algorithm(2, 256 << 10), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(algorithm(2, 512 << 10), Algorithm::kOneShot);
  EXPECT_EQ(algorithm(2, 1 << 20), Algorithm::kOneShot);
  EXPECT_NE(algorithm(4, 256 << 10), Algorithm::kOneShot);
}

// The NIC's speed bounds all algorithms alike here, and a smaller start must not decide.
TEST(ChooseTest, TwoRanksBehindASlowNicReduceLongVectorsInOneShotToo) {
  PlanContext context = TwoHosts(2);
  context.host.network_gbps = 1.25;
  for (const size_t bytes : {512 << 10, 1 << 20, 4 << 20}) {
    EXPECT_EQ(AlgorithmOf(context, Collective::kAllReduce, bytes / 4), Algorithm::kOneShot);
  }
  ASSERT_TRUE(ApplyAlgorithmList("recursivedoubling", context).ok());
  EXPECT_EQ(AlgorithmOf(context, Collective::kAllReduce, 1 << 20), Algorithm::kRecursiveDoubling);
}

TEST(ChooseTest, TwoRanksOnTwoHostsCutShortVectorsIntoEvenSlices) {
  const auto slice_bytes = [](Collective collective, int ranks, size_t bytes) {
    return PlanFor(TwoHosts(ranks), collective, bytes / 4, 4).slice_elems * 4;
  };
  for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast}) {
    EXPECT_EQ(slice_bytes(collective, 2, 32 << 10), kMinSliceBytes);
    EXPECT_EQ(slice_bytes(collective, 2, 64 << 10), kPairSliceBytes);
    EXPECT_EQ(slice_bytes(collective, 2, 100 << 10), size_t{50} << 10);
    EXPECT_EQ(slice_bytes(collective, 2, 128 << 10), kPairSliceBytes);
    EXPECT_LT(slice_bytes(collective, 4, 64 << 10), kPairSliceBytes);
  }
  EXPECT_EQ(slice_bytes(Collective::kAllGather, 2, 64 << 10), kMinSliceBytes);
}

// Between hosts, slices of 61 KB stay in a core's cache; very long operations have whole slots, or
// as much of them as makes whole packets.
TEST(ChooseTest, CutsLongSlicesBetweenHostsForVeryLongOperationsOnly) {
  PlanContext context = TwoHosts(2);
  ASSERT_TRUE(ApplyAlgorithmList("ring", context).ok());
  const auto slice_bytes = [&](size_t bytes) {
    const Plan choice = PlanFor(context, Collective::kBroadcast, bytes / 4, 4);
    EXPECT_EQ(choice.chunk_elems, 4 * choice.slice_elems);
    return choice.slice_elems * 4;
  };
  EXPECT_EQ(slice_bytes(size_t{192} << 10), kPairSliceBytes);
  EXPECT_EQ(slice_bytes(size_t{256} << 10), kPairSliceBytes);
  EXPECT_EQ(slice_bytes(size_t{512} << 10), kNetPacketBytes);
  EXPECT_EQ(slice_bytes(size_t{4} << 20), kNetPacketBytes);
  EXPECT_EQ(slice_bytes(size_t{16} << 20), 4 * kNetPacketBytes);
  EXPECT_EQ(slice_bytes(size_t{256} << 20),
            context.host.slot_bytes / kNetPacketBytes * kNetPacketBytes);
}

// Returns the smallest power of two of bytes that is pulled; 0: none.
size_t PulledFrom(const PlanContext& context, Collective collective, Buffers buffers) {
  for (size_t bytes = 64; bytes <= 64 << 20; bytes *= 2)
    if (PlanFor(context, collective, bytes, 1, ReductionOrder::kAny, buffers).algorithm() ==
        Algorithm::kPull)
      return bytes;
  return 0;
}

TEST(ChooseTest, PullsLargeBuffersAndNeverBetweenHosts) {
  const Collective moves[] = {Collective::kBroadcast, Collective::kAllGather, Collective::kAlltoAll,
                              Collective::kGather, Collective::kScatter};
  const Collective reduces[] = {Collective::kAllReduce, Collective::kReduce,
                                Collective::kReduceScatter};
  const auto expect_from = [](size_t from, size_t low, size_t high) {
    EXPECT_GE(from, low);
    EXPECT_LE(from, high);
  };
  for (const int ranks : {2, 3, 4, 8, 16}) {
    const PlanContext context = OneHost(ranks);
    const auto check = [&](Collective collective) {
      SCOPED_TRACE(testing::Message() << Name(collective) << " of " << ranks);
      EXPECT_EQ(PulledFrom(context, collective, Buffers::kOwn), 0u);
      EXPECT_EQ(PulledFrom(TwoHosts(ranks), collective, Buffers::kMapped), 0u);
      // A chain of many ranks carries more data than a single rank that adds all inputs.
      if (collective == Collective::kReduce && ranks > 4) return;
      // Measured for two ranks: from 1 KB (AlltoAll in messages) to 16 KB on
      // (bench/results/cost.md).
      expect_from(PulledFrom(context, collective, Buffers::kMapped), ranks == 2 ? 1 << 10 : 64,
                  collective == Collective::kReduce ? 256 << 10 : 64 << 10);
      expect_from(PulledFrom(context, collective, Buffers::kPerhapsMapped), 16 << 10,
                  collective == Collective::kReduce ? 256 << 10 : 64 << 10);
    };
    for (const Collective collective : moves) check(collective);
    for (const Collective collective : reduces) {
      check(collective);
      EXPECT_EQ(PulledFrom(context, collective, Buffers::kCopied), 0u) << Name(collective);
    }
    // Copies by the kernel are never faster than staging between two ranks, but for a Broadcast,
    // where they are equal (bench/results/shm.md).
    if (ranks != 2) continue;
    for (const Collective collective : moves)
      if (collective != Collective::kBroadcast) {
        EXPECT_EQ(PulledFrom(context, collective, Buffers::kCopied), 0u) << Name(collective);
      }
  }
}

TEST(ChooseTest, PullsWhateverTheSizeWhenNothingElseIsAllowed) {
  PlanContext context = OneHost(4);
  ASSERT_TRUE(ApplyAlgorithmList("pull", context).ok());
  for (const Buffers buffers : {Buffers::kMapped, Buffers::kPerhapsMapped, Buffers::kCopied})
    EXPECT_EQ(
        PlanFor(context, Collective::kAllReduce, 1, 4, ReductionOrder::kAny, buffers).algorithm(),
        Algorithm::kPull);
  EXPECT_NE(PlanFor(context, Collective::kAllReduce, 1, 4).algorithm(), Algorithm::kPull);
  ASSERT_TRUE(ApplyAlgorithmList("^pull", context).ok());
  EXPECT_EQ(PulledFrom(context, Collective::kAllReduce, Buffers::kMapped), 0u);
}

TEST(ChooseTest, TakesTheProtocolThatIsLeftAtEverySize) {
  for (PlanContext context : {OneHost(4), TwoHosts(4)}) {
    for (int c = 0; c < kNumCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (collective == Collective::kBarrier) continue;  // moves no data
      SCOPED_TRACE(testing::Message()
                   << Name(collective) << (context.host.one_host ? "" : " by TCP"));
      EXPECT_EQ(PlanFor(context, collective, 1, 4).protocol, Protocol::kLL);
      for (const char* const simple : {"Simple", "^LL"}) {
        ASSERT_TRUE(ApplyProtocolList(simple, context).ok());
        for (size_t count = 1; count < 1 << 20; count *= 3)
          EXPECT_EQ(PlanFor(context, collective, count, 4).protocol, Protocol::kSimple) << count;
      }
      context.allowed_protocols = {};
    }
    // Algorithms with rings use LL for data of any length.
    ASSERT_TRUE(ApplyProtocolList("LL", context).ok());
    for (const Collective collective :
         {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast,
          Collective::kAllGather, Collective::kReduceScatter})
      for (size_t count = 1; count < 1 << 20; count *= 3)
        EXPECT_EQ(PlanFor(context, collective, count, 4).protocol, Protocol::kLL) << count;
    context.allowed_protocols = {};
  }
}

TEST(AlgorithmListTest, RestrictsAllOrOneCollective) {
  PlanContext context = OneHost(4);
  ASSERT_TRUE(ApplyAlgorithmList("Ring", context).ok());
  EXPECT_EQ(AlgorithmOf(context, Collective::kAllReduce, 1), Algorithm::kRing);
  ASSERT_TRUE(ApplyAlgorithmList("^oneshot,TWOSHOT;broadcast:ring", context).ok());
  EXPECT_NE(AlgorithmOf(context, Collective::kAllReduce, 1), Algorithm::kOneShot);
  EXPECT_EQ(AlgorithmOf(context, Collective::kBroadcast, 1), Algorithm::kRing);
  // A list without an algorithm for a collective does not apply to the collective.
  ASSERT_TRUE(ApplyAlgorithmList("tree,nvls", context).ok());
  EXPECT_EQ(AlgorithmOf(context, Collective::kAllReduce, 1), Algorithm::kTree);
  EXPECT_EQ(AlgorithmOf(context, Collective::kAllGather, 1), Algorithm::kOneShot);
}

// "allreduce:tree" as NCCL 2.30 spells the setting, and the spelling that NCCL 2.31 needs.
TEST(AlgorithmListTest, LeavesAloneWhatItDoesNotName) {
  for (const char* const text : {"allreduce:tree", "Ring,Tree;AllReduce:Tree"}) {
    SCOPED_TRACE(text);
    PlanContext context = TwoHosts(4);
    ASSERT_TRUE(ApplyAlgorithmList(text, context).ok());
    ASSERT_TRUE(ApplyProtocolList("Simple", context).ok());
    for (size_t count = 1; count < 1 << 24; count *= 8) {
      EXPECT_EQ(AlgorithmOf(context, Collective::kAllReduce, count), Algorithm::kTree);
      for (const Collective collective : {Collective::kBroadcast, Collective::kReduce,
                                          Collective::kAlltoAll, Collective::kBarrier})
        EXPECT_EQ(AlgorithmOf(context, collective, count),
                  AlgorithmOf(TwoHosts(4), collective, count));
      // The longer spelling names rings for these collectives.
      for (const Collective collective : {Collective::kAllGather, Collective::kReduceScatter})
        EXPECT_EQ(AlgorithmOf(context, collective, count),
                  text[0] == 'R' ? Algorithm::kRing : AlgorithmOf(TwoHosts(4), collective, count));
    }
  }
}

TEST(AlgorithmListTest, TakesAnEntryForAllOnlyAsTheFirst) {
  PlanContext context;
  EXPECT_THAT(std::string(ApplyAlgorithmList("allreduce:tree;ring", context).message()),
              HasSubstr("must be the first"));
  EXPECT_THAT(std::string(ApplyAlgorithmList("allreduce:", context).message()),
              HasSubstr("names no algorithm"));
  EXPECT_TRUE(ApplyAlgorithmList(";ring;", context).ok());
}

TEST(AlgorithmListTest, RestrictsProtocols) {
  PlanContext context = TwoHosts(4);
  EXPECT_EQ(PlanFor(context, Collective::kAllReduce, 1 << 20, 4).protocol, Protocol::kSimple);
  ASSERT_TRUE(ApplyProtocolList("broadcast:LL;allreduce:^Simple", context).ok());
  EXPECT_EQ(PlanFor(context, Collective::kAllReduce, 1 << 20, 4).protocol, Protocol::kLL);
  EXPECT_EQ(PlanFor(context, Collective::kBroadcast, 1 << 20, 4).protocol, Protocol::kLL);
  EXPECT_EQ(PlanFor(context, Collective::kAllGather, 1 << 20, 4).protocol, Protocol::kSimple);
  ASSERT_TRUE(ApplyProtocolList("LL128", context).ok());
  EXPECT_EQ(PlanFor(context, Collective::kAllGather, 1 << 20, 4).protocol, Protocol::kSimple);
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
