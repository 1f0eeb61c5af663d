#include "perf/collectives.h"

#include <gtest/gtest.h>

namespace tutti::tools {
namespace {

TEST(Collectives, SpellingsOfOneName) {
  for (const char* name :
       {"all_reduce", "allreduce", "AllReduce", "all-reduce", "all_reduce_perf"}) {
    const auto info = ParseCollective(name);
    ASSERT_TRUE(info.ok()) << name;
    EXPECT_EQ(info.value().collective, Collective::kAllReduce);
  }
  EXPECT_EQ(ParseCollective("all_to_all").value().collective, Collective::kAlltoAll);
  EXPECT_EQ(ParseCollective("all_two_all").ok(), false);
  EXPECT_EQ(ParseCollective("alltoall").value().collective, Collective::kAlltoAll);
  EXPECT_EQ(ParseCollective("").ok(), false);
}

TEST(Collectives, SizesFollowNcclTests) {
  // 1 MiB of float32 on four ranks.
  const auto shape = [](Collective collective) { return ShapeFor(collective, 1 << 20, 4, 4); };
  EXPECT_EQ(shape(Collective::kAllReduce).count, 262144u);
  EXPECT_EQ(shape(Collective::kAllGather).count, 65536u);
  EXPECT_EQ(shape(Collective::kAllGather).send_count, 65536u);
  EXPECT_EQ(shape(Collective::kAllGather).recv_count, 262144u);
  EXPECT_EQ(shape(Collective::kReduceScatter).count, 65536u);
  EXPECT_EQ(shape(Collective::kReduceScatter).send_count, 262144u);
  EXPECT_EQ(shape(Collective::kAlltoAll).count, 65536u);
  EXPECT_EQ(shape(Collective::kGather).count, 65536u);
  EXPECT_EQ(shape(Collective::kScatter).recv_count, 65536u);
  EXPECT_EQ(shape(Collective::kSendRecv).count, 262144u);
  for (const CollectiveInfo& info : AllCollectives()) {
    if (info.collective == Collective::kAlltoAllV) continue;
    EXPECT_EQ(shape(info.collective).bytes, 1u << 20) << info.name;
  }
}

TEST(Collectives, SmallSizesHaveAnElementPerRank) {
  EXPECT_EQ(ShapeFor(Collective::kAllGather, 8, 4, 4).bytes, 16u);
  EXPECT_EQ(ShapeFor(Collective::kAllReduce, 2, 4, 4).bytes, 4u);
  EXPECT_EQ(ShapeFor(Collective::kAlltoAll, 0, 4, 4).bytes, 0u);
  EXPECT_EQ(ShapeFor(Collective::kAllReduce, 7, 4, 3).bytes, 4u);
}

TEST(Collectives, BusFactors) {
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kAllReduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kAllGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kReduceScatter, 2), 0.5);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kAlltoAll, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kGather, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kBroadcast, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kReduce, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kSendRecv, 4), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Collective::kAllReduce, 1), 0);
}

TEST(Collectives, BlocksTileTheWhole) {
  for (const int n : {1, 2, 3, 5, 16}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{17}, size_t{1000}, size_t{1} << 40}) {
      size_t end = 0;
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_EQ(BlockStart(count, rank, n), end);
        end += BlockCount(count, rank, n);
      }
      EXPECT_EQ(end, count);
    }
  }
}

// The elements that a rank expects in its receive buffer are in the send buffer of some rank, and
// fit.
TEST(Collectives, RegionsLieWithinTheBuffers) {
  for (const CollectiveInfo& info : AllCollectives()) {
    for (const int n : {1, 2, 3, 4, 8}) {
      const Shape shape = ShapeFor(info.collective, 4000, 4, n);
      for (int rank = 0; rank < n; ++rank) {
        for (const Region& region : ExpectedRegions(info.collective, shape, rank, n - 1, n)) {
          EXPECT_LE(region.begin + region.count, shape.recv_count) << info.name;
          const int source = region.source_rank == Region::kReduced ? 0 : region.source_rank;
          EXPECT_LE(region.source_begin + region.count,
                    SendCount(info.collective, shape, source, n))
              << info.name;
        }
        const InPlaceOffsets place = InPlaceFor(info.collective, shape, rank, n);
        const size_t inner =
            place.shared_is_recv ? SendCount(info.collective, shape, rank, n) : shape.count / 1000;
        const size_t outer = place.shared_is_recv ? shape.recv_count : shape.send_count;
        EXPECT_TRUE(!info.has_in_place || place.offset + inner <= outer) << info.name;
      }
    }
  }
}

TEST(Collectives, PairsAgree) {
  for (int a = 0; a < 5; ++a) {
    for (int b = 0; b < 5; ++b) EXPECT_EQ(PairCount(101, a, b), PairCount(101, b, a));
  }
}

}  // namespace
}  // namespace tutti::tools
