#include "grid/grid.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "grid/block.h"

namespace tutti {
namespace {

tuttiHostLaunch_t Shape(tuttiDim3_t grid, tuttiDim3_t block) {
  tuttiHostLaunch_t launch = {};
  launch.grid_size = grid;
  launch.block_size = block;
  return launch;
}

template <typename Body>
Status RunBody(const tuttiHostLaunch_t& launch, Body body) {
  TUTTI_ASSIGN(const tuttiHostLaunch_t checked, CheckLaunch(launch));
  return RunGrid(
      checked,
      [](const tuttiHostThread_t* self, void* argument) { (*static_cast<Body*>(argument))(*self); },
      &body);
}

TEST(GridTest, EveryThreadRunsOnceWithItsIndex) {
  std::mutex mutex;
  std::set<std::tuple<unsigned, unsigned, unsigned, unsigned, unsigned>> seen;
  std::set<std::thread::id> threads;
  ASSERT_TRUE(RunBody(Shape({2, 3, 0}, {4, 1, 2}), [&](const tuttiHostThread_t& self) {
                const std::lock_guard lock(mutex);
                EXPECT_EQ(self.number, self.thread_index.x + 4 * self.thread_index.z);
                EXPECT_EQ(self.grid_size.z, 1u);
                seen.insert({self.block_index.x, self.block_index.y, self.thread_index.x,
                             self.thread_index.y, self.thread_index.z});
                threads.insert(std::this_thread::get_id());
              }).ok());
  EXPECT_EQ(seen.size(), 48u);
  EXPECT_EQ(threads.size(), 48u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 1u);
}

TEST(GridTest, RefusesTooManyThreads) {
  EXPECT_EQ(CheckLaunch(Shape({4097, 1, 1}, {1, 1, 1})).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckLaunch(Shape({64, 1, 1}, {65, 1, 1})).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(CheckLaunch(Shape({1u << 31, 1u << 31, 4}, {1, 1, 1})).status().code(),
            Code::kInvalidArgument);
  EXPECT_TRUE(CheckLaunch(Shape({64, 1, 1}, {64, 1, 1})).ok());
}

TEST(GridTest, ABlockMeetsAndSharesVariables) {
  constexpr unsigned kThreads = 6;
  std::atomic<int> wrong = 0;
  static const char key = 0;
  ASSERT_TRUE(RunBody(Shape({3, 1, 1}, {kThreads, 1, 1}), [&](const tuttiHostThread_t& self) {
                auto* const places = static_cast<unsigned*>(
                    self.block->SharedVariable(&key, kThreads * sizeof(unsigned), 64));
                if (reinterpret_cast<uintptr_t>(places) % 64 != 0) ++wrong;
                for (unsigned round = 0; round < 100; ++round) {
                  places[self.number] = round * 1000 + self.block_index.x * 100 + self.number;
                  self.block->Sync();
                  const unsigned next = (self.number + 1) % kThreads;
                  if (places[next] != round * 1000 + self.block_index.x * 100 + next) ++wrong;
                  self.block->Sync();
                }
              }).ok());
  EXPECT_EQ(wrong, 0);
}

TEST(GridTest, ABlockHasItsSharedMemory) {
  tuttiHostLaunch_t launch = Shape({2, 1, 1}, {2, 1, 1});
  launch.shared_bytes = 100;
  std::atomic<int> wrong = 0;
  ASSERT_TRUE(RunBody(launch, [&](const tuttiHostThread_t& self) {
                auto* const memory = static_cast<char*>(self.block->shared_memory());
                if (self.number == 0)
                  std::memset(memory, static_cast<int>(self.block_index.x), 100);
                self.block->Sync();
                if (memory[99] != static_cast<char>(self.block_index.x)) ++wrong;
              }).ok());
  EXPECT_EQ(wrong, 0);
}

TEST(BlockTest, NamedBarriersMeetApart) {
  std::atomic<int> sums[2] = {};
  std::atomic<int> wrong = 0;
  ASSERT_TRUE(RunBody(Shape({1, 1, 1}, {5, 1, 1}), [&](const tuttiHostThread_t& self) {
                const unsigned id = self.number < 2 ? 0 : 1;
                const int count = id == 0 ? 2 : 3;
                for (int round = 1; round <= 100; ++round) {
                  sums[id].fetch_add(1, std::memory_order_relaxed);
                  self.block->SyncNamed(id, static_cast<unsigned>(count));
                  if (sums[id].load(std::memory_order_relaxed) != round * count) ++wrong;
                  self.block->SyncNamed(id, static_cast<unsigned>(count));
                }
              }).ok());
  EXPECT_EQ(wrong, 0);
}

TEST(BlockTest, AWarpThatIsNotFullMeetsAmongThoseThatAreThere) {
  std::atomic<int> met = 0;
  ASSERT_TRUE(RunBody(Shape({1, 1, 1}, {35, 1, 1}), [&](const tuttiHostThread_t& self) {
                self.block->SyncWarp(self.number, UINT32_MAX);
                ++met;
              }).ok());
  EXPECT_EQ(met, 35);
}

}  // namespace
}  // namespace tutti
