// Calls whose thread gets no more memory, from each of its allocations on in turn: they fail, and
// nothing refers to what has gone.

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <new>

#include "conformance/cases.h"
#include "tutti/tutti.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they have their own

namespace {
// How many allocations the calling thread may still make; negative: any number.
thread_local int allocations_left = -1;
}  // namespace

void* operator new(size_t bytes) {
  void* const memory = allocations_left == 0 ? nullptr : std::malloc(bytes);
  if (allocations_left > 0) --allocations_left;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Out of line, or the compiler finds that what `new` returned is freed otherwise.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tutti::testing {
namespace {

constexpr int kRanks = 3;
using Comms = std::array<ncclComm_t, kRanks>;

// Returns whether the call of ncclGroupEnd succeeded with `allocations` allocations, or any number.
bool ReduceWith(const Comms& comms, int allocations) {
  std::array<float, kRanks> values = {1, 2, 3};
  EXPECT_NCCL(ncclGroupStart());
  for (size_t i = 0; i < kRanks; ++i)
    EXPECT_NCCL(ncclAllReduce(&values[i], &values[i], 1, ncclFloat32, ncclSum, comms[i], nullptr));
  allocations_left = allocations;
  const ncclResult_t result = ncclGroupEnd();
  allocations_left = -1;
  if (result == ncclSuccess) {
    EXPECT_EQ(values, (std::array<float, kRanks>{6, 6, 6}));
  }
  return result == ncclSuccess;
}

bool AreAllUsable(const Comms& comms) {
  for (ncclComm_t comm : comms) {
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
    if (error != ncclSuccess) return false;
  }
  return true;
}

// A group that fails has either issued nothing, or stopped a communicator.
TEST(LackOfMemoryTest, EndsAGroupOfSeveralRanksCleanly) {
  // Where there is no memory even to tell the other ranks, these find out by themselves.
  ASSERT_EQ(setenv("TUTTI_TIMEOUT_S", "1", 1), 0);
  int failed = 0;
  for (int allocations = 0;; ++allocations) {
    SCOPED_TRACE(allocations);
    Comms comms = {};
    ASSERT_NCCL(ncclCommInitAll(comms.data(), kRanks, nullptr));
    const bool worked = ReduceWith(comms, allocations);
    if (!worked && AreAllUsable(comms)) {
      EXPECT_TRUE(ReduceWith(comms, /*allocations=*/-1));
    }
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
    if (worked || HasFailure()) break;
    ++failed;
    ASSERT_LT(allocations, 1000);
  }
  EXPECT_GT(failed, 5);
}

}  // namespace
}  // namespace tutti::testing

#endif
