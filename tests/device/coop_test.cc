// Groups of threads: who is in them, that they meet, and that a value of one reaches all.

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "tutti/host_kernel.h"

namespace {

// Each thread finds its place by each group and stores it.
template <typename Coop>
struct Places {
  std::vector<int> rank, size;
  explicit Places(size_t threads) : rank(threads, -1), size(threads, -1) {}
};

template <typename Coop>
void NotePlace(Coop coop, Places<Coop>* places) {
  places->rank[threadIdx.x] = coop.thread_rank();
  places->size[threadIdx.x] = coop.size();
}

TEST(CoopTest, EveryThreadHasItsPlace) {
  Places<ncclCoopThread> alone(64);
  ASSERT_EQ(tutti::Launch(NotePlace<ncclCoopThread>, {1, 64}, ncclCoopThread(), &alone),
            ncclSuccess);
  Places<ncclCoopTile<8>> tiles(64);
  ASSERT_EQ(tutti::Launch(NotePlace<ncclCoopTile<8>>, {1, 64}, ncclCoopTile<8>(), &tiles),
            ncclSuccess);
  Places<ncclCoopWarp> warps(64);
  ASSERT_EQ(tutti::Launch(NotePlace<ncclCoopWarp>, {1, 64}, ncclCoopWarp(), &warps), ncclSuccess);
  Places<ncclCoopWarpSpan> spans(64);
  ASSERT_EQ(tutti::Launch(NotePlace<ncclCoopWarpSpan>, {1, 64}, ncclCoopWarpSpan(1, 1, 0), &spans),
            ncclSuccess);
  Places<ncclCoopCta> ctas(64);
  ASSERT_EQ(tutti::Launch(NotePlace<ncclCoopCta>, {1, 64}, ncclCoopCta(), &ctas), ncclSuccess);
  for (int t = 0; t < 64; ++t) {
    const auto i = static_cast<size_t>(t);
    EXPECT_EQ(alone.rank[i], 0);
    EXPECT_EQ(tiles.rank[i], t % 8);
    EXPECT_EQ(warps.rank[i], t % 32);
    EXPECT_EQ(spans.rank[i], t - 32);
    EXPECT_EQ(ctas.rank[i], t);
    EXPECT_EQ(ctas.size[i], 64);
    EXPECT_EQ(tiles.size[i], 8);
  }
}

TEST(CoopTest, LanesCountOnlyThoseOfTheMask) {
  Places<ncclCoopLanes> lanes(32);
  ASSERT_EQ(tutti::Launch(NotePlace<ncclCoopLanes>, {1, 32}, ncclCoopLanes(0x0000f00fu), &lanes),
            ncclSuccess);
  EXPECT_EQ(lanes.size[0], 8);
  EXPECT_EQ(lanes.rank[3], 3);
  EXPECT_EQ(lanes.rank[12], 4);
  EXPECT_EQ(lanes.rank[15], 7);
}

// Counts up together: behind each meeting all threads of a group must see the sum of all.
template <typename Coop>
void CountTogether(Coop coop, std::atomic<int>* counts, int first_thread, std::atomic<int>* wrong) {
  const int own = coop.thread_rank();
  if (own < 0 || own >= coop.size()) return;
  const int group = (static_cast<int>(threadIdx.x) - own - first_thread) / coop.size();
  for (int round = 1; round <= 200; ++round) {
    counts[group].fetch_add(1, std::memory_order_relaxed);
    coop.sync();
    if (counts[group].load(std::memory_order_relaxed) != round * coop.size()) ++*wrong;
    coop.sync();
  }
}

template <typename Coop>
int WrongCounts(Coop coop, unsigned threads, int first_thread = 0) {
  std::vector<std::atomic<int>> counts(threads);
  std::atomic<int> wrong = 0;
  EXPECT_EQ(
      tutti::Launch(CountTogether<Coop>, {1, threads}, coop, counts.data(), first_thread, &wrong),
      ncclSuccess);
  return wrong;
}

TEST(CoopTest, GroupsMeet) {
  EXPECT_EQ(WrongCounts(ncclCoopTile<4>(), 32), 0);
  EXPECT_EQ(WrongCounts(ncclCoopWarp(), 64), 0);
  EXPECT_EQ(WrongCounts(ncclCoopCta(), 33), 0);
  EXPECT_EQ(WrongCounts(ncclCoopWarpSpan(1, 1, 14), 64, 32), 0);
  EXPECT_EQ(WrongCounts(ncclCoopAny(ncclCoopCta()), 16), 0);
}

// A lane belongs to one set of lanes and then to another, while lanes of the second already wait.
TEST(CoopTest, SetsOfLanesDoNotMix) {
  std::atomic<int> wrong = 0;
  ASSERT_EQ(tutti::Launch(
                +[](std::atomic<int>* bad) {
                  const unsigned lane = threadIdx.x;
                  for (int round = 0; round < 300; ++round) {
                    const int of_pair = ncclCoopBcast(ncclCoopTile<2>(), static_cast<int>(lane), 1);
                    const int of_four = ncclCoopBcast(ncclCoopTile<4>(), static_cast<int>(lane), 2);
                    if (of_pair != static_cast<int>(lane | 1)) ++*bad;
                    if (of_four != static_cast<int>((lane & ~3u) + 2)) ++*bad;
                  }
                },
                {1, 8}, &wrong),
            ncclSuccess);
  EXPECT_EQ(wrong, 0);
}

struct Wide {
  int64_t a, b;
};
template <typename Coop>
void BroadcastAll(Coop coop, int members, std::atomic<int>* wrong) {
  const int own = coop.thread_rank();
  if (own < 0 || own >= coop.size()) return;
  for (int root = 0; root < members; ++root) {
    const Wide got = ncclCoopBcast(coop, Wide{own, -own}, root);
    if (got.a != root || got.b != -root) ++*wrong;
  }
}

TEST(CoopTest, AValueReachesAllMembers) {
  std::atomic<int> wrong = 0;
  ASSERT_EQ(tutti::Launch(BroadcastAll<ncclCoopThread>, {1, 4}, ncclCoopThread(), 1, &wrong),
            ncclSuccess);
  ASSERT_EQ(tutti::Launch(BroadcastAll<ncclCoopTile<8>>, {1, 32}, ncclCoopTile<8>(), 8, &wrong),
            ncclSuccess);
  ASSERT_EQ(tutti::Launch(BroadcastAll<ncclCoopWarp>, {1, 64}, ncclCoopWarp(), 32, &wrong),
            ncclSuccess);
  ASSERT_EQ(
      tutti::Launch(BroadcastAll<ncclCoopWarpSpan>, {1, 64}, ncclCoopWarpSpan(1, 1, 3), 32, &wrong),
      ncclSuccess);
  ASSERT_EQ(tutti::Launch(BroadcastAll<ncclCoopCta>, {2, 20}, ncclCoopCta(), 20, &wrong),
            ncclSuccess);
  EXPECT_EQ(wrong, 0);
}

TEST(CoopTest, ShufflesAreThoseOfCuda) {
  std::atomic<int> wrong = 0;
  ASSERT_EQ(tutti::Launch(
                +[](std::atomic<int>* bad) {
                  const int lane = static_cast<int>(threadIdx.x);
                  if (__shfl_sync(~0u, lane, 5) != 5) ++*bad;
                  if (__shfl_sync(~0u, lane, 5, 8) != lane / 8 * 8 + 5) ++*bad;
                  if (__shfl_xor_sync(~0u, lane, 3) != (lane ^ 3)) ++*bad;
                  if (__shfl_xor_sync(~0u, lane, 8, 8) != (lane % 16 < 8 ? lane : lane - 8)) ++*bad;
                  if (__shfl_down_sync(~0u, lane, 4) != (lane < 28 ? lane + 4 : lane)) ++*bad;
                  if (__shfl_up_sync(~0u, lane, 4, 16) != (lane % 16 >= 4 ? lane - 4 : lane))
                    ++*bad;
                  if (__ballot_sync(~0u, lane % 2) != 0xaaaaaaaau) ++*bad;
                  if (__any_sync(~0u, lane == 31) != 1 || __all_sync(~0u, lane < 31) != 0) ++*bad;
                },
                {1, 32}, &wrong),
            ncclSuccess);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
