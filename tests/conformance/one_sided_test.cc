// One-sided calls of ranks that are threads.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

#include "conformance/windows.h"
#include "nccl_device.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

constexpr const char* kForHosts = "GPUs have no one-sided calls yet";

class OneSidedTest : public ::testing::TestWithParam<int> {};

TEST_P(OneSidedTest, PutsAreThereWhenTheirSignalsAre) {
  TUTTI_FOR_HOSTS(kForHosts);
  const int n = GetParam();
  ThreadWorld world(n);
  ASSERT_TRUE(world.ok());
  RunRanks(n, [&](int rank) { PutToAllAndCheck(world.comm(rank), rank, n, 30); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneSidedTest, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

// A wait takes as many signals as it asks for, of each rank; the rest is there for the next.
TEST(SignalTest, WaitsTakeWhatTheyAskFor) {
  TUTTI_FOR_HOSTS(kForHosts);
  constexpr int kRanks = 3;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  std::atomic<int> sent = 0;
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow window(comm, 4096);
    if (rank != 0) {
      for (int i = 0; i < 5; ++i) EXPECT_NCCL(ncclSignal(0, 0, 0, 0, comm, nullptr));
      ++sent;
    } else {
      std::vector<ncclWaitSignalDesc_t> descs = {{2, 1, 0, 0}, {3, 2, 0, 0}, {1, 1, 0, 0}};
      EXPECT_NCCL(ncclWaitSignal(3, descs.data(), comm, nullptr));
      descs = {{2, 1, 0, 0}, {2, 2, 0, 0}, {0, 1, 0, 0}};
      EXPECT_NCCL(ncclWaitSignal(3, descs.data(), comm, nullptr));
      EXPECT_NCCL(ncclWaitSignal(0, nullptr, comm, nullptr));
    }
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
  });
  EXPECT_EQ(sent, kRanks - 1);
}

// Whatever the order of the calls in a group, no rank waits before it has put.
TEST(SignalTest, AGroupPutsBeforeItWaits) {
  TUTTI_FOR_HOSTS(kForHosts);
  constexpr int kRanks = 2;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow window(comm, 4096);
    ncclWaitSignalDesc_t desc = {1, 1 - rank, 0, 0};
    for (int round = 1; round <= 20; ++round) {
      int sum = rank, value = round * 10 + rank;
      EXPECT_NCCL(ncclGroupStart());
      EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, nullptr));
      EXPECT_NCCL(
          ncclPutSignal(&value, 1, ncclInt32, 1 - rank, window.get(), 64, 0, 0, 0, comm, nullptr));
      EXPECT_NCCL(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, comm, nullptr));
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_EQ(*reinterpret_cast<int*>(window.own() + 64), round * 10 + 1 - rank);
      EXPECT_EQ(sum, 1);
      // Nobody puts the next number before this one has been looked at.
      EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    }
  });
}

TEST(SignalTest, CallsKeepTheOrderOfTheirStream) {
  TUTTI_FOR_HOSTS(kForHosts);
  constexpr int kRanks = 2, kRounds = 50;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow window(comm, kRounds * sizeof(int));
    cudaStream_t stream = nullptr;
    ASSERT_NCCL(tuttiStreamCreate(&stream));
    std::vector<int> values(kRounds);
    std::iota(values.begin(), values.end(), 100 * rank);
    ncclWaitSignalDesc_t desc = {1, 1 - rank, 0, 0};
    for (size_t i = 0; i < kRounds; ++i) {
      EXPECT_NCCL(ncclPutSignal(&values[i], 1, ncclInt32, 1 - rank, window.get(), i * sizeof(int),
                                0, 0, 0, comm, stream));
      EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, stream));
    }
    EXPECT_NCCL(tuttiStreamSynchronize(stream));
    const int* const got = reinterpret_cast<int*>(window.own());
    for (int i = 0; i < kRounds; ++i) EXPECT_EQ(got[i], 100 * (1 - rank) + i);
    EXPECT_NCCL(tuttiStreamDestroy(stream));
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
  });
}

TEST(SignalTest, AnAbortEndsAWait) {
  TUTTI_FOR_HOSTS(kForHosts);
  constexpr int kRanks = 2;
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, kRanks, id, rank));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, nullptr, 4096, &window, NCCL_WIN_DEFAULT));
    ncclWaitSignalDesc_t desc = {1, 1 - rank, 0, 0};
    ncclResult_t ended = ncclSuccess;
    std::atomic<pid_t> id_of_waiter = 0;
    std::thread waiter([&] {
      id_of_waiter = ThisThread();
      ended = ncclWaitSignal(1, &desc, comm, nullptr);
    });
    while (id_of_waiter == 0) std::this_thread::yield();
    EXPECT_TRUE(AwaitAsleep(id_of_waiter));
    EXPECT_NCCL(ncclCommAbort(comm));
    waiter.join();
    EXPECT_NE(ended, ncclSuccess);
  });
}

TEST(SignalTest, NeedsAWindow) {
  TUTTI_FOR_HOSTS(kForHosts);
  constexpr int kRanks = 2;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    EXPECT_EQ(ncclSignal(1 - rank, 0, 0, 0, comm, nullptr), ncclInvalidUsage);
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    TestWindow window(comm, 4096);
    EXPECT_NCCL(ncclSignal(1 - rank, 0, 0, 0, comm, nullptr));
  });
}

}  // namespace
}  // namespace tutti::testing
