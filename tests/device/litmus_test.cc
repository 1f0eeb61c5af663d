// Tests what the memory model promises to kernels, asked many times: message passing through a flag
// and through a barrier, and store buffering. On the host the processor and the compiler answer;
// the sanitizer says where a promise is not needed for what was seen.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "devcomm/testing/lsa_threads.h"
#include "tutti/host_kernel.h"

namespace tutti {
namespace {

constexpr int kTries = 100'000;

// Rank 0 writes data and then a flag on rank 1, which reads the flag and then the data. A try has
// words of its own, so that none waits for another.
__global__ void PassMessages(ncclDevComm comm, ncclWindow_t data, ncclWindow_t flags, int tries,
                             std::atomic<int>* seen, std::atomic<int>* wrong) {
  auto* const values = static_cast<int*>(ncclGetLsaPointer(data, 0, 1));
  auto* const told = static_cast<int*>(ncclGetLsaPointer(flags, 0, 1));
  for (int i = 0; i < tries; ++i) {
    cuda::atomic_ref<int> flag(told[i]);
    if (comm.rank == 0) {
      values[i] = i + 1;
      flag.store(1, cuda::memory_order_release);
    } else if (flag.load(cuda::memory_order_acquire) != 0) {
      ++*seen;
      if (values[i] != i + 1) ++*wrong;
    } else {
      // Wait for one in a while, so that the ranks stay together.
      for (unsigned round = 0; i % 64 == 0 && flag.load(cuda::memory_order_relaxed) == 0; ++round)
        tuttiHostPause(round);
    }
  }
}

void TryMessagePassing() {
  LsaThreads team(2);
  const std::vector<ncclDevComm> comms = team.MakeDevComms(NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER);
  const std::vector<ncclWindow_t> data = team.MakeWindow(kTries * sizeof(int));
  const std::vector<ncclWindow_t> flags = team.MakeWindow(kTries * sizeof(int));
  std::atomic<int> seen = 0, wrong = 0;
  team.Run([&](int rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(Launch(PassMessages, {1, 1}, comms[r], data[r], flags[r], kTries, &seen, &wrong),
              ncclSuccess);
  });
  EXPECT_GT(seen, 0);
  EXPECT_EQ(wrong, 0);
}
TEST(LitmusTest, MessagePassing) { TryMessagePassing(); }
TEST(SlowLitmusTest, MessagePassingInAMillionRounds) {
  for (int i = 0; i < 10; ++i) TryMessagePassing();
}

// Each rank stores into its own word and then reads the other's. With fences between, at least one
// of them sees the other's store.
template <bool kFenced>
__global__ void BufferStores(ncclDevComm comm, ncclWindow_t window, int tries, int* read) {
  auto* const own = static_cast<int*>(ncclGetLocalPointer(window, 0));
  auto* const others = static_cast<int*>(ncclGetLsaPointer(window, 0, 1 - comm.rank));
  ncclLsaBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), comm, ncclTeamTagLsa(), 0);
  for (int i = 0; i < tries; ++i) {
    if (i % 64 == 0) barrier.sync(ncclCoopThread(), cuda::memory_order_relaxed);
    cuda::atomic_ref<int>(own[i]).store(1, cuda::memory_order_relaxed);
    if (kFenced) cuda::atomic_thread_fence(cuda::memory_order_seq_cst, cuda::thread_scope_system);
    read[i] = cuda::atomic_ref<int>(others[i]).load(cuda::memory_order_relaxed);
  }
}

// Returns how often neither rank has seen the other's store.
template <bool kFenced>
int CountNeither() {
  LsaThreads team(2);
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.lsaBarrierCount = 1;
  const std::vector<ncclDevComm> comms = team.MakeDevComms(requirements);
  const std::vector<ncclWindow_t> window = team.MakeWindow(kTries * sizeof(int));
  std::vector<std::vector<int>> read(2, std::vector<int>(kTries, -1));
  team.Run([&](int rank) {
    const auto r = static_cast<size_t>(rank);
    EXPECT_EQ(Launch(BufferStores<kFenced>, {1, 1}, comms[r], window[r], kTries, read[r].data()),
              ncclSuccess);
  });
  int neither = 0, seen = 0;
  for (size_t i = 0; i < kTries; ++i) {
    neither += read[0][i] == 0 && read[1][i] == 0 ? 1 : 0;
    seen += read[0][i] + read[1][i];
  }
  if (kFenced) {
    EXPECT_GE(seen, kTries);
  }
  return neither;
}
TEST(LitmusTest, StoreBuffering) { EXPECT_EQ(CountNeither<true>(), 0); }
TEST(SlowLitmusTest, StoreBufferingInAMillionRounds) {
  for (int i = 0; i < 10; ++i) EXPECT_EQ(CountNeither<true>(), 0);
}

// Shows that the test could fail: two processors let a load pass the store before it.
TEST(LitmusTest, StoresWithoutFencesArePassed) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "there is one processor";
  const Deadline end = Deadline::AfterSeconds(60);
  int neither = 0;
  while (neither == 0 && !end.Passed()) neither = CountNeither<false>();
  EXPECT_GT(neither, 0);
}

}  // namespace
}  // namespace tutti
