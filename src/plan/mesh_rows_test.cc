#include <gtest/gtest.h>

#include <utility>

#include "plan/mesh.h"
#include "plan/testing/plan_by_size.h"

namespace tutti {
namespace {

constexpr Collective kAll[] = {Collective::kAllReduce,     Collective::kReduce,
                               Collective::kBroadcast,     Collective::kAllGather,
                               Collective::kReduceScatter, Collective::kAlltoAll,
                               Collective::kGather,        Collective::kScatter};

PlanContext Context(int num_ranks) {
  PlanContext context;
  context.kind = RankKind::kMesh;
  context.num_ranks = num_ranks;
  context.mesh.slot_bytes = 16 << 10;
  context.mesh.ring_slot_bytes = 16 << 10;
  context.mesh.ll_slot_bytes = 2048;
  context.mesh.ll128_slot_bytes = 240 * 36;
  context.mesh.max_blocks = 128;
  context.mesh.max_lone_blocks = 100;
  return context;
}

// min_blocks applies as far as the data suffice, and max_blocks prevails over min_blocks.
TEST(ChooseMeshTest, TakesAsManyBlocksAsIsAskedAtLeast) {
  PlanContext context = Context(4);
  constexpr size_t kCount = 4 << 10;
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather}) {
    context.mesh.min_blocks = 1;
    const uint32_t usual = PlanFor(context, collective, kCount, 4).channels;
    ASSERT_LT(usual, 100u);
    context.mesh.min_blocks = 100;
    EXPECT_GT(PlanFor(context, collective, kCount, 4).channels, 90u) << Name(collective);
    context.mesh.max_blocks = 50;
    EXPECT_GT(PlanFor(context, collective, kCount, 4).channels, usual) << Name(collective);
    EXPECT_LE(PlanFor(context, collective, kCount, 4).channels, 50u) << Name(collective);
    context.mesh.max_blocks = 128;
    EXPECT_EQ(PlanFor(context, collective, 4, 4).channels, 1u);
  }
}

// Checks the assumptions of the kernels for every size: blocks cover all data and nothing is cut
// inside a line; chunks fit slots; LL and LL128 take a single piece, because their reuse of slots
// is proven for two rounds of a kernel.
void ExpectWhatKernelsRelyOn(const PlanContext& context, Collective collective, size_t count,
                             size_t elem) {
  const int n = context.num_ranks;
  const Plan c = PlanFor(context, collective, count, elem);
  SCOPED_TRACE(testing::Message() << n << " ranks, " << Name(collective) << " of " << count << " × "
                                  << elem << ": " << DescribeMesh(c));
  ASSERT_GE(c.channels, 1u);
  ASSERT_LE(c.channels, context.mesh.max_blocks);
  if (c.threads > 256) {
    ASSERT_LE(c.channels, context.mesh.max_lone_blocks);
  }
  ASSERT_LE(c.threads, c.protocol == Protocol::kLL128 ? 384u : 256u);
  ASSERT_GE(c.channels * c.channel_elems, count);
  ASSERT_LT((c.channels - 1) * c.channel_elems, count);
  if (c.row->id == MeshAlgorithm::kMessages) return;  // messages are cut elsewhere
  ASSERT_EQ(c.channel_elems * elem % 16, 0u);
  ASSERT_EQ(c.chunk_elems * elem % 16, 0u);
  ASSERT_GE(c.chunk_elems, 1u);
  ASSERT_LE(c.chunk_elems * elem, IsRing(c.row->id)                ? context.mesh.ring_slot_bytes
                                  : c.protocol == Protocol::kLL    ? context.mesh.ll_slot_bytes
                                  : c.protocol == Protocol::kLL128 ? context.mesh.ll128_slot_bytes
                                                                   : context.mesh.slot_bytes);
  if (c.protocol == Protocol::kSimple) return;
  const bool all = c.row->id == MeshAlgorithm::kAllReduceTwoShot;
  const bool two_shot = IsTwoShot(c.row->id);
  const size_t owners = two_shot ? static_cast<size_t>(all ? n : n - 1) : size_t{1};
  ASSERT_LE(c.channel_elems, owners * c.chunk_elems);
}

TEST(ChooseMeshTest, KeepsWhatKernelsRelyOn) {
  for (const auto& [n, max_blocks] :
       {std::pair{2, 128}, {3, 64}, {4, 128}, {8, 128}, {16, 1}, {8, 7}}) {
    PlanContext context = Context(n);
    context.mesh.max_blocks = static_cast<uint32_t>(max_blocks);
    for (const uint32_t allowed : {0u, Bit(Algorithm::kOneShot), Bit(Algorithm::kTwoShot),
                                   Bit(Algorithm::kRing), Bit(Algorithm::kExchange)}) {
      context.allowed_algorithms.fill(allowed);
      for (const Collective collective : kAll)
        for (const size_t elem : {1, 2, 4, 8})
          for (size_t count = 1; count < size_t{1} << 32; count = count * 3 + 1)
            ExpectWhatKernelsRelyOn(context, collective, count, elem);
    }
  }
}

TEST(ChooseMeshTest, SmallByLLMiddleByLL128LargeRoundTheRing) {
  const PlanContext context = Context(8);
  const Plan small = PlanFor(context, Collective::kAllReduce, 1024, 4);
  EXPECT_EQ(small.row->id, MeshAlgorithm::kAllReduceOneShot);
  EXPECT_EQ(small.protocol, Protocol::kLL);
  const Plan middle = PlanFor(context, Collective::kAllReduce, 1 << 20, 4);
  EXPECT_EQ(middle.row->id, MeshAlgorithm::kAllReduceTwoShot);
  EXPECT_EQ(middle.protocol, Protocol::kLL128);
  const Plan large = PlanFor(context, Collective::kAllReduce, 64 << 20, 4);
  EXPECT_EQ(large.row->id, MeshAlgorithm::kAllReduceRing);
  EXPECT_EQ(large.protocol, Protocol::kSimple);
  EXPECT_EQ(large.channels, 128u);
  for (const Collective collective :
       {Collective::kAlltoAll, Collective::kGather, Collective::kScatter}) {
    EXPECT_EQ(PlanFor(context, collective, 64, 4).row->id == MeshAlgorithm::kMessages,
              collective != Collective::kAlltoAll);
    EXPECT_EQ(PlanFor(context, collective, 16 << 20, 4).row->id, MeshAlgorithm::kMessages);
  }
}

TEST(ChooseMeshTest, TakesWhatTheListsLeave) {
  using A = MeshAlgorithm;
  PlanContext context = Context(8);
  const auto choose = [&](Collective collective, size_t count) {
    return PlanFor(context, collective, count, 4, ReductionOrder::kAny, Buffers::kRegistered);
  };
  ASSERT_TRUE(ApplyAlgorithmList("Ring", context).ok());
  EXPECT_EQ(choose(Collective::kAllReduce, 3).row->id, A::kAllReduceRing);
  EXPECT_EQ(choose(Collective::kBroadcast, 3).row->id, A::kBroadcastChain);
  EXPECT_EQ(choose(Collective::kAlltoAll, 64).row->id, A::kAlltoAll);  // has no ring
  // Where no allowed algorithm has the protocol, the wish for the algorithm counts.
  ASSERT_TRUE(ApplyProtocolList("LL", context).ok());
  EXPECT_EQ(choose(Collective::kAllReduce, 1024).row->id, A::kAllReduceRing);
  context = Context(8);
  ASSERT_TRUE(
      ApplyAlgorithmList("^ring,symmetric;reduce:twoshot;allgather:symmetric", context).ok());
  EXPECT_EQ(choose(Collective::kAllReduce, 64 << 20).row->id, A::kAllReduceTwoShot);
  EXPECT_EQ(choose(Collective::kReduce, 3).row->id, A::kReduceTwoShot);
  EXPECT_EQ(choose(Collective::kAllGather, 3).row->id, A::kAllGatherSymmetric);
  // The names of other libraries' algorithms are no mistake, and allow all algorithms.
  context = Context(8);
  ASSERT_TRUE(ApplyAlgorithmList("Tree,NVLS", context).ok());
  EXPECT_TRUE(LeavesNothing("Tree,NVLS", context.allowed_algorithms));
  EXPECT_EQ(choose(Collective::kAllReduce, 1024).row->id, A::kAllReduceOneShot);
  EXPECT_EQ(ApplyAlgorithmList("rings", context).code(), Code::kInvalidUsage);
}

TEST(ChooseMeshTest, ShortOperationsComeEarlyIfTheyLeaveRoom) {
  PlanContext context = Context(8);
  context.mesh.max_lone_blocks = 128;
  EXPECT_TRUE(PlanFor(context, Collective::kAllReduce, 1024, 4).early);
  EXPECT_FALSE(PlanFor(context, Collective::kAllReduce, 64 << 20, 4).early);
  EXPECT_EQ(MostEarlyBlocks(context.mesh, context.mesh.max_blocks), 64u);
  context.mesh.max_blocks = 127;
  EXPECT_EQ(MostEarlyBlocks(context.mesh, context.mesh.max_blocks), 0u);
  EXPECT_FALSE(PlanFor(context, Collective::kAllReduce, 1024, 4).early);
  context = Context(8);
  context.mesh.costs.early_blocks = 0;
  EXPECT_FALSE(PlanFor(context, Collective::kAllReduce, 1024, 4).early);
}

// By LL128 an operation has no more blocks than may come early, as long as early blocks do not
// write too much.
TEST(ChooseMeshTest, OperationsOfMiddleSizeComeEarly) {
  PlanContext context = Context(4);
  context.mesh.max_lone_blocks = 128;
  const auto all_reduce = [&](size_t bytes) {
    return PlanFor(context, Collective::kAllReduce, bytes / 4, 4);
  };
  for (const size_t kib : {256, 512, 1024, 2048}) {
    const Plan choice = all_reduce(kib << 10);
    EXPECT_EQ(choice.protocol, Protocol::kLL128) << kib;
    EXPECT_TRUE(choice.early) << kib;
    EXPECT_GE(choice.channels, 32u) << kib;
  }
  EXPECT_EQ(all_reduce(3 << 20).channels, 128u);
  // More blocks are taken where a slot is too short for the data of an early block.
  context.mesh.ll128_slot_bytes = 6 << 10;
  EXPECT_EQ(all_reduce(2 << 20).channels, 128u);
  EXPECT_EQ(all_reduce(2 << 20).protocol, Protocol::kLL128);
}

TEST(BlocksForTest, LeavesRoomForOtherCommunicators) {
  EXPECT_EQ(BlocksFor(132), 128u);  // H100, H200
  EXPECT_EQ(BlocksFor(108), 104u);  // A100
  EXPECT_EQ(BlocksFor(16), 16u);    // a slice of a GPU
  for (int m = 2; m < 300; ++m) {
    EXPECT_LE(BlocksFor(m) * kCommunicatorsAtOnce,
              static_cast<uint32_t>(m) * kBlocksOnMultiprocessor);
    EXPECT_GE(BlocksFor(m + 1), BlocksFor(m));
  }
  EXPECT_EQ(BlocksFor(1), 1u);
  EXPECT_EQ(BlocksFor(0), 1u);  // not known
}

TEST(MeshTuningTest, ReadsNumbersAndRefusesOthers) {
  PlanContext context = Context(4);
  ASSERT_TRUE(ApplyMeshTuning("simple_us=3,blocks=16,min_chunk_bytes=4096", context.mesh).ok());
  EXPECT_EQ(context.mesh.costs.simple_us, 3);
  EXPECT_EQ(context.mesh.max_blocks, 16u);
  EXPECT_EQ(context.mesh.costs.min_chunk_bytes, 4096u);
  ASSERT_TRUE(ApplyMeshTuning("chain_pieces=0,early_blocks=0", context.mesh).ok());
  EXPECT_EQ(context.mesh.costs.chain_pieces, 1u) << "data are cut into one piece at least";
  EXPECT_EQ(context.mesh.costs.early_blocks, 0u);
  EXPECT_EQ(ApplyMeshTuning("wind=3", context.mesh).code(), Code::kInvalidUsage);
  EXPECT_EQ(ApplyMeshTuning("blocks", context.mesh).code(), Code::kInvalidUsage);
}

}  // namespace
}  // namespace tutti
