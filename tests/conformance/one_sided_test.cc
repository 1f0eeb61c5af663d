// One-sided calls of ranks that are threads.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "conformance/windows.h"
#include "nccl_device.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

class OneSidedTest : public ::testing::TestWithParam<int> {};

TEST_P(OneSidedTest, PutsAreThereWhenTheirSignalsAre) {
  const int n = GetParam();
  TUTTI_NEEDS_RANKS(n);
  ThreadWorld world(n);
  ASSERT_TRUE(world.ok());
  RunRanks(n, [&](int rank) { PutToAllAndCheck(world.comm(rank), rank, n, 30); });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OneSidedTest, ::testing::Values(1, 2, 3, 4, 8),
                         [](const auto& instance) { return fmt::format("{}", instance.param); });

// A wait takes as many signals as it asks for, of each rank; the rest is there for the next.
TEST(SignalTest, WaitsTakeWhatTheyAskFor) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
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
    EXPECT_NCCL(Finish(comm));
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
  });
  EXPECT_EQ(sent, kRanks - 1);
}

// Whatever the order of the calls in a group, no rank waits before it has put.
TEST(SignalTest, AGroupPutsBeforeItWaits) {
  constexpr int kRanks = 2;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow window(comm, 4096);
    TestMemory memory(2 * sizeof(int));
    int* const value = reinterpret_cast<int*>(memory.data());
    int* const sum = value + 1;
    ncclWaitSignalDesc_t desc = {1, 1 - rank, 0, 0};
    for (int round = 1; round <= 20; ++round) {
      Put(value, std::vector{round * 10 + rank, rank});
      EXPECT_NCCL(ncclGroupStart());
      EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, nullptr));
      EXPECT_NCCL(
          ncclPutSignal(value, 1, ncclInt32, 1 - rank, window.get(), 64, 0, 0, 0, comm, nullptr));
      EXPECT_NCCL(ncclAllReduce(sum, sum, 1, ncclInt32, ncclSum, comm, nullptr));
      EXPECT_NCCL(ncclGroupEnd());
      EXPECT_NCCL(Finish(comm));
      EXPECT_EQ(Get(reinterpret_cast<int*>(window.own() + 64), 1)[0], round * 10 + 1 - rank);
      EXPECT_EQ(Get(sum, 1)[0], 1);
      // Nobody puts the next number before this one has been looked at.
      EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    }
  });
}

TEST(SignalTest, CallsKeepTheOrderOfTheirStream) {
  constexpr int kRanks = 2, kRounds = 50;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow window(comm, kRounds * sizeof(int));
    cudaStream_t stream = nullptr;
    ASSERT_NCCL(StreamCreate(&stream));
    std::vector<int> values(kRounds);
    std::iota(values.begin(), values.end(), 100 * rank);
    TestMemory memory(kRounds * sizeof(int));
    int* const from = reinterpret_cast<int*>(memory.data());
    Put(from, values);
    ncclWaitSignalDesc_t desc = {1, 1 - rank, 0, 0};
    for (size_t i = 0; i < kRounds; ++i) {
      EXPECT_NCCL(ncclPutSignal(from + i, 1, ncclInt32, 1 - rank, window.get(), i * sizeof(int), 0,
                                0, 0, comm, stream));
      EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, stream));
    }
    EXPECT_NCCL(StreamSynchronize(stream));
    const std::vector<int> got = Get(reinterpret_cast<int*>(window.own()), kRounds);
    for (size_t i = 0; i < kRounds; ++i) EXPECT_EQ(got[i], 100 * (1 - rank) + static_cast<int>(i));
    EXPECT_NCCL(StreamDestroy(stream));
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
  });
}

// Runs body(rank, comm) on two ranks with a window. Each body aborts its communicator.
template <class Body>
void RunTwoToAbort(Body body) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(2, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, nullptr, 4096, &window, NCCL_WIN_DEFAULT));
    body(rank, comm);
  });
}

TEST(SignalTest, AnAbortEndsAWait) {
  TUTTI_FOR_HOSTS("on GPUs streams wait, and the call returns");
  RunTwoToAbort([](int rank, ncclComm_t comm) {
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

// A stream that waits for a rank that does not signal goes on when the communicator is aborted.
TEST(SignalTest, AnAbortEndsTheWaitOfAStream) {
  TUTTI_FOR_GPUS();
  RunTwoToAbort([](int rank, ncclComm_t comm) {
    cudaStream_t stream = nullptr;
    ASSERT_NCCL(StreamCreate(&stream));
    ncclWaitSignalDesc_t desc = {1, 1 - rank, 0, 0};
    EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, stream));
    EXPECT_NCCL(ncclCommRevoke(comm, 0));
    EXPECT_NCCL(StreamSynchronize(stream));
    EXPECT_NE(ncclSignal(1 - rank, 0, 0, 0, comm, stream), ncclSuccess);
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_NCCL(StreamDestroy(stream));
  });
}

// The signal of a rank whose stream comes to it only after the communicator has stopped does not
// hold up a stream that waits for more signals of that rank. Until then the streams are held up by
// another communicator, which has not stopped.
TEST(SignalTest, ALateSignalDoesNotUndoTheEndOfWaits) {
  TUTTI_FOR_GPUS();
  ThreadWorld others(2);
  ASSERT_TRUE(others.ok());
  RunTwoToAbort([&](int rank, ncclComm_t comm) {
    ncclComm_t other = others.comm(rank);
    const TestWindow other_window(other, 4096);
    cudaStream_t held = nullptr, free = nullptr;
    ASSERT_NCCL(StreamCreate(&held));
    ASSERT_NCCL(StreamCreate(&free));
    ncclWaitSignalDesc_t one = {1, 1 - rank, 0, 0}, two = {2, 1 - rank, 0, 0};
    EXPECT_NCCL(ncclWaitSignal(1, &one, other, held));
    EXPECT_NCCL(rank == 0 ? ncclWaitSignal(1, &two, comm, held)
                          : ncclSignal(0, 0, 0, 0, comm, held));
    EXPECT_NCCL(ncclCommRevoke(comm, 0));
    EXPECT_NCCL(tuttiBarrier(other, nullptr));
    EXPECT_NCCL(Finish(other));
    // The signal is raised first, and only then does the other rank come to its wait.
    if (rank == 1) {
      EXPECT_NCCL(StreamSynchronize(held));
    }
    EXPECT_NCCL(ncclSignal(1 - rank, 0, 0, 0, other, free));
    std::atomic<bool> done = false;
    EXPECT_NCCL(StreamLaunchHostFunc(
        held, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &done));
    const Deadline deadline = Deadline::AfterSeconds(20);
    while (!done && !deadline.Passed()) std::this_thread::yield();
    EXPECT_TRUE(done) << "rank " << rank;
    EXPECT_NCCL(ncclCommAbort(comm));
    EXPECT_NCCL(StreamSynchronize(held));
    EXPECT_NCCL(StreamDestroy(held));
    EXPECT_NCCL(StreamDestroy(free));
    EXPECT_NCCL(tuttiBarrier(other, nullptr));
    EXPECT_NCCL(Finish(other));
  });
}

// Puts keep the order of their calls over streams. A wait holds up its own stream alone: a put of
// another one passes it.
TEST(SignalTest, AWaitHoldsUpNoOtherStream) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow window(comm, 4096);
    TestMemory memory(sizeof(int));
    int* const from = reinterpret_cast<int*>(memory.data());
    Put(from, std::vector{100 + rank});
    cudaStream_t waiting = nullptr, putting = nullptr;
    ASSERT_NCCL(StreamCreate(&waiting));
    ASSERT_NCCL(StreamCreate(&putting));
    ncclWaitSignalDesc_t desc = {2, 1 - rank, 0, 0};
    EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, waiting));
    EXPECT_NCCL(
        ncclPutSignal(from, 1, ncclInt32, 1 - rank, window.get(), 64, 0, 0, 0, comm, putting));
    EXPECT_NCCL(ncclSignal(1 - rank, 0, 0, 0, comm, nullptr));
    EXPECT_NCCL(StreamSynchronize(waiting));
    EXPECT_EQ(Get(reinterpret_cast<int*>(window.own() + 64), 1)[0], 101 - rank);
    EXPECT_NCCL(Finish(comm));
    EXPECT_NCCL(StreamDestroy(waiting));
    EXPECT_NCCL(StreamDestroy(putting));
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    EXPECT_NCCL(Finish(comm));
  });
}

// A window is given up only when the puts out of it and into it are done.
TEST(SignalTest, AWindowWaitsForPuts) {
  TUTTI_FOR_GPUS();
  constexpr int kRanks = 2;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  std::atomic<bool> signalled = false;
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    TestWindow window(comm, 4096);
    TestMemory memory(4096);
    ncclWindow_t second = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, nullptr, 4096, &second, NCCL_WIN_DEFAULT));
    cudaStream_t stream = nullptr;
    ASSERT_NCCL(StreamCreate(&stream));
    if (rank == 0) {
      ncclWaitSignalDesc_t desc = {1, 1, 0, 0};
      EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, stream));
      EXPECT_NCCL(
          ncclPutSignal(memory.data(), 4096, ncclInt8, 1, second, 0, 0, 0, 0, comm, stream));
      EXPECT_NCCL(ncclCommWindowDeregister(comm, second));
      EXPECT_TRUE(signalled);
    } else {
      // Longer than giving up a window takes that nothing uses.
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      signalled = true;
      EXPECT_NCCL(ncclSignal(0, 0, 0, 0, comm, stream));
      ncclWaitSignalDesc_t desc = {1, 0, 0, 0};
      EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, stream));
      EXPECT_NCCL(StreamSynchronize(stream));
      EXPECT_NCCL(ncclCommWindowDeregister(comm, second));
    }
    EXPECT_NCCL(StreamDestroy(stream));
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    EXPECT_NCCL(Finish(comm));
  });
}

TEST(SignalTest, IsRefusedWhereStreamsCannotWait) {
  if (getenv("TUTTI_FAKE_GPUS") == nullptr) GTEST_SKIP() << "skipped: needs the stand-in for GPUs";
  constexpr int kRanks = 2;
  setenv("TUTTI_FAKE_NO_WORDS", "1", 1);
  {
    ThreadWorld world(kRanks);
    ASSERT_TRUE(world.ok());
    RunRanks(kRanks, [&](int rank) {
      ncclComm_t comm = world.comm(rank);
      TestWindow window(comm, 4096);
      EXPECT_EQ(ncclSignal(1 - rank, 0, 0, 0, comm, nullptr), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr("cannot wait for words"));
      EXPECT_NCCL(tuttiBarrier(comm, nullptr));
      EXPECT_NCCL(Finish(comm));
    });
  }
  unsetenv("TUTTI_FAKE_NO_WORDS");
}

TEST(SignalTest, NeedsAWindow) {
  constexpr int kRanks = 2;
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    EXPECT_EQ(ncclSignal(1 - rank, 0, 0, 0, comm, nullptr), ncclInvalidUsage);
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    TestWindow window(comm, 4096);
    EXPECT_NCCL(ncclSignal(1 - rank, 0, 0, 0, comm, nullptr));
    EXPECT_NCCL(Finish(comm));
  });
}

}  // namespace
}  // namespace tutti::testing
