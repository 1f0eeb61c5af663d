// Device communicators of real communicators, whose ranks are threads here.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "rank_threads.h"
#include "tutti/host_kernel.h"

namespace {

using tutti::testing::RunRanks;

// Memory of this rank that all ranks reach.
struct SharedInts {
  SharedInts(ncclComm_t in_comm, size_t count) : comm(in_comm) {
    EXPECT_EQ(ncclMemAlloc(&memory, count * sizeof(int)), ncclSuccess);
    EXPECT_EQ(
        ncclCommWindowRegister(comm, memory, count * sizeof(int), &window, NCCL_WIN_COLL_SYMMETRIC),
        ncclSuccess)
        << ncclGetLastError(nullptr);
  }
  ~SharedInts() {
    EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclSuccess);
    EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
  }
  ncclComm_t comm;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
};

// Every rank writes to all and reads what all have written, over a barrier of each kind, and sends
// by an exchange.
__global__ void TalkToAll(ncclDevComm comm, ncclWindow_t window, const void* memory,
                          ncclLLA2AHandle handle, int round, std::atomic<int>* wrong) {
  const ncclCoopCta cta;
  ncclLsaBarrierSession<ncclCoopCta> barrier(cta, comm, ncclTeamTagLsa(), blockIdx.x);
  ncclBarrierSession<ncclCoopCta> other(cta, ncclTeamTagLsa(), comm, blockIdx.x);
  const size_t slots = blockIdx.x * static_cast<unsigned>(comm.nRanks) * sizeof(int);
  for (int peer = 0; threadIdx.x == 0 && peer < comm.nRanks; ++peer)
    static_cast<int*>(ncclGetPeerPointer(window, slots, peer))[comm.rank] = round + comm.rank;
  barrier.sync(cta, cuda::memory_order_acq_rel);
  const int* const here = static_cast<int*>(ncclGetLocalPointer(window, slots));
  for (int peer = 0; peer < comm.nRanks; ++peer)
    if (here[peer] != round + peer) ++*wrong;
  other.sync(cta, cuda::memory_order_acq_rel);
  if (ncclFindWindow(cta, comm, memory) != window) ++*wrong;

  ncclLLA2ASession<ncclCoopCta> exchange(cta, comm, ncclTeamLsa(comm), handle, blockIdx.x,
                                         comm.nRanks);
  if (threadIdx.x == 0) exchange.bcast(comm.rank, round * 10 + comm.rank);
  for (int peer = 0; peer < comm.nRanks; ++peer)
    if (exchange.recv<int>(peer) != round * 10 + peer) ++*wrong;
  exchange.endEpoch(cta);
}

ncclDevCommRequirements_t Asked(int barriers) {
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  requirements.lsaBarrierCount = requirements.barrierCount = barriers;
  return requirements;
}

TEST(DeviceCommunicatorTest, KernelsTalkOverIt) {
  constexpr int kRanks = 3, kBlocks = 2;
  std::atomic<int> wrong = 0;
  RunRanks(kRanks, [&](int rank, ncclComm_t comm) {
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    EXPECT_EQ(ncclCommQueryProperties(comm, &properties), ncclSuccess);
    EXPECT_TRUE(properties.deviceApiSupport);
    EXPECT_EQ(properties.nLsaTeams, 1);
    SharedInts ints(comm, kBlocks * kRanks);
    // Made, used and given back twice: what the first leaves must not show in the second.
    for (int time = 0; time < 2; ++time) {
      ncclDevCommRequirements_t requirements = Asked(kBlocks);
      ncclLLA2AHandle handle;
      ncclDevResourceRequirements_t element;
      EXPECT_EQ(ncclLLA2ACreateRequirement(kBlocks, kRanks, &handle, &element), ncclSuccess);
      requirements.resourceRequirementsList = &element;
      ncclDevComm devcomm;
      ASSERT_EQ(ncclDevCommCreate(comm, &requirements, &devcomm), ncclSuccess)
          << ncclGetLastError(nullptr);
      EXPECT_EQ(devcomm.rank, rank);
      EXPECT_EQ(devcomm.nRanks, kRanks);
      EXPECT_EQ(devcomm.lsaSize, kRanks);
      for (int round = 1; round <= 20; ++round)
        EXPECT_EQ(tutti::Launch(TalkToAll, {kBlocks, 2}, devcomm, ints.window, ints.memory, handle,
                                round, &wrong),
                  ncclSuccess);
      EXPECT_EQ(ncclDevCommDestroy(comm, &devcomm), ncclSuccess);
      EXPECT_EQ(ncclDevCommDestroy(comm, &devcomm), ncclInvalidArgument);
    }
  });
  EXPECT_EQ(wrong, 0);
}

TEST(DeviceCommunicatorTest, RanksThatAskDifferentlyAllFailAndGoOn) {
  RunRanks(2, [](int rank, ncclComm_t comm) {
    ncclDevComm devcomm;
    ncclDevCommRequirements_t requirements = Asked(1 + rank);
    EXPECT_EQ(ncclDevCommCreate(comm, &requirements, &devcomm), ncclInvalidArgument);
    requirements = Asked(1);
    if (rank == 1) requirements.lsaMultimem = true;  // wrong on one rank only
    EXPECT_EQ(ncclDevCommCreate(comm, &requirements, &devcomm), ncclInvalidArgument);
    requirements = Asked(1);
    ASSERT_EQ(ncclDevCommCreate(comm, &requirements, &devcomm), ncclSuccess)
        << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclDevCommDestroy(comm, &devcomm), ncclSuccess);
  });
}

__global__ void WaitForAll(ncclDevComm comm, std::atomic<bool>* waits) {
  ncclLsaBarrierSession<ncclCoopThread> barrier(ncclCoopThread(), comm, ncclTeamTagLsa(), 0);
  barrier.arrive(ncclCoopThread(), cuda::memory_order_acq_rel);
  *waits = true;
  barrier.wait(ncclCoopThread(), cuda::memory_order_acq_rel);
}

TEST(DeviceCommunicatorTest, ARevokedCommunicatorEndsWaitsOfKernels) {
  std::atomic<bool> waits = false, ended = false;
  std::atomic<ncclComm_t> waiting_comm = nullptr;
  const auto wait_and_revoke = [&](int rank, ncclComm_t comm) {
    ncclDevComm devcomm;
    const ncclDevCommRequirements_t requirements = Asked(1);
    ASSERT_EQ(ncclDevCommCreate(comm, &requirements, &devcomm), ncclSuccess);
    if (rank == 0) {
      waiting_comm = comm;
      EXPECT_EQ(tutti::Launch(WaitForAll, {}, devcomm, &waits), ncclSuccess);
      ended = true;
      return;
    }
    while (!waits) std::this_thread::yield();
    EXPECT_FALSE(ended);
    EXPECT_EQ(ncclCommRevoke(waiting_comm, NCCL_REVOKE_DEFAULT), ncclSuccess);
    while (!ended) std::this_thread::yield();
  };
  RunRanks(2, wait_and_revoke, ncclCommAbort);
  EXPECT_TRUE(ended);
}

}  // namespace
