#include "window/offset_space.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

namespace tutti {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(OffsetSpaceTest, TakesTheLowestPlace) {
  OffsetSpace space(128 * kGiB);
  EXPECT_EQ(space.Take(4 * kMiB, 2 * kMiB), 0u);
  EXPECT_EQ(space.Take(8 * kMiB, 2 * kMiB), 4 * kMiB);
  space.GiveBack(0, 4 * kMiB);
  EXPECT_EQ(space.Take(6 * kMiB, 2 * kMiB), 12 * kMiB);  // The run does not fit into the gap.
  EXPECT_EQ(space.Take(2 * kMiB, 2 * kMiB), 0u);
  EXPECT_EQ(space.Take(2 * kMiB, 2 * kMiB), 2 * kMiB);
  EXPECT_EQ(space.taken(), 18 * kMiB);
}

TEST(OffsetSpaceTest, AlignsAndGivesTheGapToOthers) {
  OffsetSpace space(100);
  EXPECT_EQ(space.Take(3, 1), 0u);
  EXPECT_EQ(space.Take(10, 16), 16u);
  EXPECT_EQ(space.Take(13, 1), 3u);  // all of the gap
  EXPECT_EQ(space.Take(1, 1), 26u);
}

TEST(OffsetSpaceTest, RefusesWhatDoesNotFit) {
  OffsetSpace space(100);
  EXPECT_EQ(space.Take(101, 1), std::nullopt);
  EXPECT_EQ(space.Take(UINT64_MAX, 1), std::nullopt);
  EXPECT_EQ(space.Take(100, 1), 0u);
  EXPECT_EQ(space.Take(1, 1), std::nullopt);
  space.GiveBack(0, 100);
  EXPECT_EQ(space.Take(60, 64), 0u);
  EXPECT_EQ(space.Take(60, 64), std::nullopt);  // 64 to 100 are too few.
  EXPECT_EQ(OffsetSpace(0).Take(1, 1), std::nullopt);
}

// A run of the traffic, as a test keeps it.
struct Piece {
  uint64_t begin;
  uint64_t count;
};

// Random traffic: takes runs and gives them back, with at most `most` numbers taken at any time.
// Calls `after` with the taken runs after each step.
template <class After>
void Drive(OffsetSpace& space, uint32_t seed, int steps, uint64_t most, const After& after) {
  std::mt19937 random(seed);
  std::vector<Piece> runs;
  for (int step = 0; step < steps; ++step) {
    const uint64_t count = (uint64_t{1} << (random() % 8)) + random() % 16;
    const uint64_t alignment = uint64_t{1} << (random() % 5);
    if (space.taken() + count > most || (!runs.empty() && random() % 5 < 2)) {
      std::swap(runs[random() % runs.size()], runs.back());
      space.GiveBack(runs.back().begin, runs.back().count);
      runs.pop_back();
    } else {
      const std::optional<uint64_t> begin = space.Take(count, alignment);
      ASSERT_TRUE(begin.has_value()) << "step " << step << ": " << space.taken() << " are taken";
      ASSERT_EQ(*begin % alignment, 0u);
      runs.push_back({*begin, count});
    }
    after(runs);
  }
}

TEST(OffsetSpaceTest, RunsNeverOverlap) {
  constexpr uint64_t kSize = 1 << 16;
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    OffsetSpace space(kSize);
    Drive(space, seed, 2000, kSize / 4, [&](std::vector<Piece> runs) {
      std::sort(runs.begin(), runs.end(),
                [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
      uint64_t end = 0, taken = 0;
      for (const Piece& run : runs) {
        ASSERT_GE(run.begin, end);
        end = run.begin + run.count;
        taken += run.count;
      }
      ASSERT_LE(end, kSize);
      ASSERT_EQ(space.taken(), taken);
    });
  }
}

// All ranks rely on equal answers. The traffic depends on the answers, as the traffic of ranks
// does.
TEST(OffsetSpaceTest, IsEqualOnAllRanksUnderRandomTraffic) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const auto trace = [seed] {
      std::vector<uint64_t> begins;
      OffsetSpace space(1 << 14);
      Drive(space, seed, 2000, 1 << 12, [&](const std::vector<Piece>& runs) {
        begins.push_back(runs.empty() ? 0 : runs.back().begin);
      });
      return begins;
    };
    EXPECT_EQ(trace(), trace());
  }
}

// With a quarter of the numbers taken some run always fits (Drive asserts this), however long the
// traffic lasts. When all runs are given back, one run takes everything.
TEST(OffsetSpaceTest, FragmentationIsBounded) {
  constexpr uint64_t kSize = 1 << 12;
  OffsetSpace space(kSize);
  std::vector<Piece> left;
  Drive(space, 7, 200'000, kSize / 4, [&](const std::vector<Piece>& runs) { left = runs; });
  for (const Piece& run : left) space.GiveBack(run.begin, run.count);
  EXPECT_EQ(space.taken(), 0u);
  EXPECT_EQ(space.Take(kSize, 1), 0u);
}

}  // namespace
}  // namespace tutti
