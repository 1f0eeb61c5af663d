#include "gpu/block_bounds.h"

#include <gtest/gtest.h>

#include <utility>

namespace tutti {
namespace {

// Returns the bounds of settings in the order of NCCL_MIN_NCHANNELS, NCCL_MIN_CTAS,
// NCCL_MAX_NCHANNELS and NCCL_MAX_CTAS.
std::pair<int64_t, int64_t> Bounds(int64_t min_channels, int64_t min_blocks, int64_t max_channels,
                                   int64_t max_blocks) {
  Settings settings;
  settings.min_nchannels = min_channels;
  settings.min_ctas = min_blocks;
  settings.max_nchannels = max_channels;
  settings.max_ctas = max_blocks;
  const BlockBounds bounds = BlockBoundsOf(settings);
  return {bounds.fewest, bounds.most};
}

TEST(BlockBoundsTest, NothingIsBoundByDefault) {
  EXPECT_EQ(Bounds(0, 0, 0, 0), std::pair(int64_t{1}, int64_t{0}));
}

TEST(BlockBoundsTest, TheHigherMinimumAndTheLowerMaximumCount) {
  EXPECT_EQ(Bounds(2, 3, 8, 9), std::pair(int64_t{3}, int64_t{8}));
  EXPECT_EQ(Bounds(4, 3, 9, 8), std::pair(int64_t{4}, int64_t{8}));
  EXPECT_EQ(Bounds(0, 3, 0, 8), std::pair(int64_t{3}, int64_t{8}));
  EXPECT_EQ(Bounds(4, 0, 7, 0), std::pair(int64_t{4}, int64_t{7}));
}

TEST(BlockBoundsTest, AMinimumAboveTheMaximumYieldsTheMaximum) {
  EXPECT_EQ(Bounds(9, 0, 0, 4), std::pair(int64_t{4}, int64_t{4}));
}

}  // namespace
}  // namespace tutti
