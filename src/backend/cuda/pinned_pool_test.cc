#include "backend/cuda/pinned_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

namespace tutti::cuda {
namespace {

// Returns a driver with the calls that the pool uses.
Driver HeapDriver() {
  Driver driver;
  driver.ContextGetCurrent = [](Context* context) {
    *context = nullptr;
    return 0;
  };
  driver.ThreadExchangeCaptureMode = [](int*) { return 0; };
  driver.MemHostAlloc = [](void** memory, size_t bytes, unsigned) {
    *memory = std::aligned_alloc(4096, bytes);
    return *memory == nullptr ? 2 : 0;
  };
  driver.MemFreeHost = [](void* memory) {
    std::free(memory);
    return 0;
  };
  return driver;
}

TEST(PinnedPoolTest, GivesOutAgainWhatCameBack) {
  const Driver driver = HeapDriver();
  PinnedPool pool(driver, nullptr);
  const std::byte* first = nullptr;
  {
    Result<PinnedBlock> block = pool.Take(100);
    ASSERT_TRUE(block.ok());
    first = block->data();
    EXPECT_EQ(block->size(), 100u);
    EXPECT_EQ(pool.kept_bytes(), 0u);
  }
  EXPECT_EQ(pool.kept_bytes(), 4096u);
  Result<PinnedBlock> longer = pool.Take(5000);
  ASSERT_TRUE(longer.ok());
  EXPECT_NE(longer->data(), first);
  Result<PinnedBlock> again = pool.Take(4096);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->data(), first);
  EXPECT_EQ(pool.kept_bytes(), 0u);
}

TEST(PinnedPoolTest, KeepsSoMuchAndNoMore) {
  const Driver driver = HeapDriver();
  PinnedPool pool(driver, nullptr);
  {
    std::vector<PinnedBlock> blocks;
    for (int i = 0; i < 5; ++i) {
      Result<PinnedBlock> block = pool.Take(PinnedPool::kMostKept / 4);
      ASSERT_TRUE(block.ok());
      blocks.push_back(std::move(*block));
    }
  }
  EXPECT_EQ(pool.kept_bytes(), PinnedPool::kMostKept);
}

}  // namespace
}  // namespace tutti::cuda
