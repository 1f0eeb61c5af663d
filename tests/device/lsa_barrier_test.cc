// LSA barriers between kernels of ranks that are threads.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "devcomm/testing/lsa_threads.h"
#include "tutti/host_kernel.h"

namespace tutti {
namespace {

ncclDevCommRequirements_t Barriers(int count) {
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.lsaBarrierCount = count;
  requirements.barrierCount = count;
  return requirements;
}

// Every rank writes the round's number into its word on all ranks, meets them, and reads theirs.
// Without the barrier the sanitizer sees a race, and sooner or later a number is old.
__global__ void MeetAndCheck(ncclDevComm comm, ncclWindow_t window, int first, int rounds,
                             std::atomic<int>* wrong) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x);
  const size_t slot = (blockIdx.x * static_cast<unsigned>(comm.nRanks)) * sizeof(int);
  for (int round = first; round < first + rounds; ++round) {
    for (int peer = static_cast<int>(threadIdx.x); peer < comm.nRanks;
         peer += static_cast<int>(blockDim.x))
      static_cast<int*>(ncclGetLsaPointer(window, slot, peer))[comm.rank] = round;
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    const int* const here = static_cast<int*>(ncclGetLocalPointer(window, slot));
    for (int peer = 0; peer < comm.nRanks; ++peer)
      if (here[peer] != round) ++*wrong;
    barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  }
}

int WrongAfterLaunches(LsaThreads& team, const std::vector<ncclDevComm>& comms, int launches,
                       int rounds, Grid grid) {
  const std::vector<ncclWindow_t> window = team.MakeWindow(4096);
  std::atomic<int> wrong = 0;
  team.Run([&](int rank) {
    const auto r = static_cast<size_t>(rank);
    for (int i = 0; i < launches; ++i)
      EXPECT_EQ(Launch(MeetAndCheck, grid, comms[r], window[r], 1 + i * rounds, rounds, &wrong),
                ncclSuccess);
  });
  return wrong;
}

TEST(LsaBarrierTest, MeetsOverHundredsOfLaunches) {
  LsaThreads team(3);
  EXPECT_EQ(WrongAfterLaunches(team, team.MakeDevComms(Barriers(2)), 300, 2, {2, 2}), 0);
}

TEST(LsaBarrierTest, MeetsWithMoreRanksThanThreads) {
  LsaThreads team(7);
  EXPECT_EQ(WrongAfterLaunches(team, team.MakeDevComms(Barriers(1)), 3, 20, {1, 2}), 0);
}

TEST(LsaBarrierTest, OneRankMeetsItself) {
  LsaThreads team(1);
  EXPECT_EQ(WrongAfterLaunches(team, team.MakeDevComms(Barriers(1)), 2, 5, {1, 3}), 0);
}

TEST(LsaBarrierTest, EpochsWrapAround) {
  LsaThreads team(3);
  const std::vector<ncclDevComm> comms = team.MakeDevComms(Barriers(1));
  // As if there had been nearly 2^32 meetings: the kept epoch and all cells.
  for (const ncclDevComm& comm : comms) {
    auto* const words =
        static_cast<uint32_t*>(ncclGetResourceBufferLocalPointer(comm, comm.lsaBarrier.bufHandle));
    words[1] = UINT32_MAX - 3;
    for (int peer = 0; peer < 3; ++peer) words[3 + peer] = UINT32_MAX - 3;
  }
  EXPECT_EQ(WrongAfterLaunches(team, comms, 4, 3, {1, 1}), 0);
}

TEST(LsaBarrierTest, BothKindsAreDifferentBarriers) {
  LsaThreads team(2);
  const std::vector<ncclDevComm> comms = team.MakeDevComms(Barriers(1));
  std::atomic<int> met = 0;
  std::atomic<int> given_up = 0;
  team.Run([&](int rank) {
    // One rank goes to one barrier first, the other to the other: nobody is met, until both have
    // given up.
    const ncclDevComm& comm = comms[static_cast<size_t>(rank)];
    ncclLsaBarrierSession<ncclCoopThread> lsa(ncclCoopThread(), comm, ncclTeamTagLsa(), 0);
    ncclBarrierSession<ncclCoopThread> both(ncclCoopThread(), ncclTeamTagLsa(), comm, 0);
    constexpr uint64_t kShort = 20'000'000;
    const auto order = cuda::memory_order_acq_rel;
    const ncclResult_t result =
        rank == 0 ? lsa.sync(ncclCoopThread(), order, kShort)
                  : both.sync(ncclCoopThread(), order, ncclGinFenceLevel::None, kShort);
    met += result == ncclSuccess ? 1 : 0;
    ++given_up;
    while (given_up < 2) std::this_thread::yield();
    if (rank == 0)
      both.sync(ncclCoopThread(), order);
    else
      lsa.sync(ncclCoopThread(), order);
  });
  EXPECT_EQ(met, 0);
}

TEST(LsaBarrierTest, TimesOutWhileARankIsAbsentAndGoesOnWhenItComes) {
  LsaThreads team(2);
  const std::vector<ncclDevComm> comms = team.MakeDevComms(Barriers(1));
  const auto order = cuda::memory_order_acq_rel;
  std::atomic<bool> given_up = false;
  team.Run([&](int rank) {
    const ncclDevComm& comm = comms[static_cast<size_t>(rank)];
    if (rank == 0) {
      {
        ncclLsaBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), comm, ncclTeamTagLsa(), 0);
        EXPECT_EQ(barrier.sync(ncclCoopThread(), order, 5'000'000), ncclTimeout);
      }
      given_up = true;
      ncclLsaBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), comm, ncclTeamTagLsa(), 0);
      barrier.sync(ncclCoopThread(), order);
      return;
    }
    while (!given_up) std::this_thread::yield();
    ncclLsaBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), comm, ncclTeamTagLsa(), 0);
    // The first meeting was missed by the other rank's deadline, not by its arrival.
    EXPECT_EQ(barrier.sync(ncclCoopThread(), order, UINT64_MAX - 1), ncclSuccess);
    EXPECT_EQ(barrier.sync(ncclCoopThread(), order, UINT64_MAX - 1), ncclSuccess);
  });
}

__global__ void WaitForTheOther(ncclDevComm comm, std::atomic<int>* through) {
  ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), comm, ncclTeamTagLsa(), 0);
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
  ++*through;
}

TEST(LsaBarrierTest, AnAbortEndsTheWait) {
  LsaThreads team(2);
  const std::vector<ncclDevComm> comms = team.MakeDevComms(Barriers(1));
  std::atomic<int> through = 0;
  std::thread waiting([&] {
    EXPECT_EQ(Launch(WaitForTheOther, {1, 3}, comms[0], &through), ncclSuccess);
  });
  // The arrival shows on the other rank, and then the kernel has nothing left but to wait.
  auto* const words = static_cast<uint32_t*>(
      ncclGetResourceBufferLocalPointer(comms[1], comms[1].lsaBarrier.bufHandle));
  while (cuda::atomic_ref<uint32_t>(words[3]).load() != 1) std::this_thread::yield();
  EXPECT_EQ(through, 0);
  cuda::atomic_ref<uint32_t>(*team.abort_flag()).store(1);
  waiting.join();
  EXPECT_EQ(through, 3);
}

}  // namespace
}  // namespace tutti
