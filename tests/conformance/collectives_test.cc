// Every collective over ranks that are threads, as the library chooses to run it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>

#include "conformance/suites.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using oracle::Op;

class CollectivesTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    TUTTI_NEEDS_RANKS(GetParam());
    world_.emplace(GetParam());
    ASSERT_TRUE(world_->ok());
  }
  std::optional<ThreadWorld> world_;
};

TEST_P(CollectivesTest, ReduceEveryTypeWithEveryOperator) {
  world_->Run(EveryTypeAndOperator(GetParam(), 33));
}
TEST_P(CollectivesTest, MoveEveryType) { world_->Run(EveryTypeMoved(GetParam(), 129)); }
TEST_P(CollectivesTest, TakeEveryCount) {
  world_->Run(EveryCount(GetParam(), {0, 1, 2, 3, 7, 31, 33, 1000, 4097}));
}
TEST_P(CollectivesTest, TakeEveryRoot) { world_->Run(EveryRoot(GetParam(), 300)); }
TEST_P(CollectivesTest, TakeBuffersOffCacheLines) { world_->Run(EverySkew(GetParam(), 515)); }
TEST_P(CollectivesTest, TakeLongBuffers) { world_->Run(Long(GetParam(), 65537)); }

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, ::testing::Values(1, 2, 3, 4, 5, 7, 8),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

// The whole of types × operators × counts, in and out of place; minutes, hence apart.
class SlowCollectivesTest : public CollectivesTest {};

TEST_P(SlowCollectivesTest, Everything) {
  for (const size_t count : {1u, 2u, 3u, 7u, 31u, 33u, 1000u, 4097u}) {
    world_->Run(EveryTypeAndOperator(GetParam(), count));
    world_->Run(EveryTypeMoved(GetParam(), count));
    world_->Run(EveryRoot(GetParam(), count));
    world_->Run(EverySkew(GetParam(), count));
  }
  world_->Run(EveryCount(GetParam(), {65537}));
  world_->Run(Long(GetParam(), 1000003), 300);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SlowCollectivesTest, ::testing::Values(3, 6),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

// What is not a number, or hardly one.
TEST(SpecialValuesTest, AreReducedAlikeOnAllRanks) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<Array<float>> in = {{inf, inf, nan, 1, tiny, -0.0f, 3e38f, -0.0f},
                                        {1, -inf, 1, nan, tiny, 0.0f, 3e38f, -0.0f},
                                        {2, 1, 1, 2, tiny, -0.0f, 0, -0.0f}};
  std::vector<Array<float>> sum(kRanks, Array<float>(8));
  std::vector<Array<float>> low = sum;
  std::vector<Array<float>> high = sum;
  RunRanks(kRanks, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    const auto reduce = [&](Array<float>& out, ncclRedOp_t op) {
      EXPECT_NCCL(ncclAllReduce(in[r].data(), out.data(), 8, ncclFloat32, op, world.comm(rank),
                                UsualStream()));
    };
    reduce(sum[r], ncclSum);
    reduce(low[r], ncclMin);
    reduce(high[r], ncclMax);
    EXPECT_NCCL(Finish(world.comm(rank)));
  });
  for (const auto* results : {&sum, &low, &high})
    for (size_t r = 1; r < kRanks; ++r)
      EXPECT_EQ(std::memcmp((*results)[r].data(), (*results)[0].data(), 8 * sizeof(float)), 0) << r;
  EXPECT_EQ(sum[0][0], inf);
  for (const size_t i : {1u, 2u, 3u}) EXPECT_TRUE(std::isnan(sum[0][i])) << i;
  EXPECT_EQ(sum[0][4], 3 * tiny);
  EXPECT_EQ(sum[0][6], inf);
  EXPECT_TRUE(sum[0][7] == 0 && std::signbit(sum[0][7]));
  EXPECT_EQ(low[0][1], -inf);
  EXPECT_TRUE(std::isnan(low[0][2]) && std::isnan(low[0][3]));
  EXPECT_TRUE(std::isnan(high[0][2]) && std::isnan(high[0][3]));
  EXPECT_TRUE(std::signbit(low[0][5])) << "-0 is the smaller zero";
  EXPECT_FALSE(std::signbit(high[0][5])) << "+0 is the larger zero";
}

TEST(ScalarTest, OnTheDeviceIsReadWhenTheOperationRuns) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    Array<float> scalar = {1}, value = {2};
    ncclRedOp_t op;
    EXPECT_NCCL(ncclRedOpCreatePreMulSum(&op, scalar.data(), ncclFloat32, ncclScalarDevice,
                                         world.comm(rank)));
    scalar[0] = rank == 0 ? 10 : 100;
    const auto reduce = [&] {
      return ncclAllReduce(value.data(), value.data(), 1, ncclFloat32, op, world.comm(rank),
                           UsualStream());
    };
    EXPECT_NCCL(reduce());
    EXPECT_NCCL(Finish(world.comm(rank)));
    EXPECT_EQ(value[0], 220);
    EXPECT_NCCL(ncclRedOpDestroy(op, world.comm(rank)));
    EXPECT_EQ(reduce(), ncclInvalidArgument);
  });
}

TEST(BarrierTest, HoldsUntilTheLastRankHasCome) {
  for (const char* no_shm : {"0", "1"}) {
    for (const int ranks : UpToMostRanks({2, 3, 4})) {
      ThreadWorld world(ranks, {{"NCCL_SHM_DISABLE", no_shm}});
      ASSERT_TRUE(world.ok());
      for (int late = 0; late < ranks; ++late) {
        std::atomic<bool> last_has_come = false;
        std::array<std::atomic<pid_t>, 4> waiting = {};  // the threads of the ranks at the barrier
        RunRanks(ranks, [&](int rank) {
          for (int other = 0; rank == late && other < ranks; ++other) {
            std::atomic<pid_t>& thread = waiting[static_cast<size_t>(other)];
            while (other != late && thread == 0) std::this_thread::yield();
            // On GPUs the barrier is queued and it is the stream that waits.
            if (other != late && !OnGpus()) {
              EXPECT_TRUE(AwaitAsleep(thread));
            }
          }
          if (rank == late) last_has_come = true;
          if (!OnGpus()) waiting[static_cast<size_t>(rank)] = ThisThread();
          EXPECT_NCCL(tuttiBarrier(world.comm(rank), UsualStream()));
          if (OnGpus()) waiting[static_cast<size_t>(rank)] = ThisThread();
          EXPECT_NCCL(Finish(world.comm(rank)));
          EXPECT_TRUE(last_has_come) << "rank " << rank << " did not wait for rank " << late;
          EXPECT_NCCL(tuttiBarrier(world.comm(rank), UsualStream()));
          EXPECT_NCCL(Finish(world.comm(rank)));
        });
      }
    }
  }
}

class ManyRanksTest : public ::testing::TestWithParam<int> {};

TEST_P(ManyRanksTest, OfOneProcessReduceAndMove) {
  const int n = GetParam();
  TUTTI_NEEDS_RANKS(n);
  ThreadWorld world(n);
  ASSERT_TRUE(world.ok());
  std::vector<Case> cases;
  for (const Collective collective : AllCollectives())
    for (const size_t count : {1u, 515u}) {
      Case c = {.collective = collective, .type = ncclInt32, .count = count, .root = n - 1};
      c.in_place = count == 1;
      cases.push_back(c);
    }
  cases.push_back({.type = ncclFloat16, .count = 4097, .rounds = true});
  world.Run(cases);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ManyRanksTest, ::testing::Values(16, 32, 64),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

}  // namespace
}  // namespace tutti::testing
