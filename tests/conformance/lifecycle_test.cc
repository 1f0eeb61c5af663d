// Communicators: made in every way there is, made from one another, and ended.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "conformance/cases.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

bool Started(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

// The sum over all ranks of each one's number; a communicator that gives it works.
void ExpectSums(ncclComm_t comm) {
  int rank = -1, count = 0;
  EXPECT_NCCL(ncclCommUserRank(comm, &rank));
  EXPECT_NCCL(ncclCommCount(comm, &count));
  Array<int> sum = {rank};
  EXPECT_NCCL(ncclAllReduce(sum.data(), sum.data(), 1, ncclInt32, ncclSum, comm, nullptr));
  EXPECT_NCCL(Finish(comm));
  EXPECT_EQ(sum[0], count * (count - 1) / 2);
}

TEST(NonBlockingTest, CommunicatorsAreMadeUsedAndEndedByPolling) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(kRanks, [&](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_TRUE(Started(ncclCommInitRankConfig(&comm, kRanks, id, rank, &config)));
    ASSERT_NE(comm, nullptr);
    ASSERT_EQ(Settle(comm), ncclSuccess) << ncclGetLastError(comm);
    Array<int> value = {rank + 1};
    const auto reduce = [&] {
      return ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr);
    };
    EXPECT_TRUE(Started(reduce()));
    ASSERT_EQ(Settle(comm), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_NCCL(Finish(comm));
    EXPECT_EQ(value[0], 6);
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_TRUE(Started(reduce()));
    EXPECT_TRUE(Started(ncclGroupEnd()));
    ASSERT_EQ(Settle(comm), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_NCCL(Finish(comm));
    EXPECT_EQ(value[0], 18);

    ncclComm_t child = nullptr;
    EXPECT_TRUE(Started(ncclCommSplit(comm, 0, -rank, &child, nullptr)));
    ASSERT_EQ(Settle(comm), ncclSuccess) << ncclGetLastError(comm);
    ASSERT_NE(child, nullptr);
    ASSERT_EQ(Settle(child), ncclSuccess) << ncclGetLastError(child);
    int child_rank = -1;
    EXPECT_NCCL(ncclCommUserRank(child, &child_rank));
    EXPECT_EQ(child_rank, kRanks - 1 - rank);
    for (ncclComm_t each : {child, comm}) {
      EXPECT_TRUE(Started(ncclCommFinalize(each)));
      EXPECT_EQ(Settle(each), ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(each));
    }
  });
}

// One thread registers for all its ranks in a group; flags that differ are refused on every rank,
// and the communicators live on.
TEST(WindowTest, AllRanksRegisterTogether) {
  constexpr size_t kRanks = 3, kBytes = 8192;
  TUTTI_NEEDS_RANKS(static_cast<int>(kRanks));
  std::array<ncclComm_t, kRanks> comms = {};
  ASSERT_NCCL(ncclCommInitAll(comms.data(), kRanks, nullptr));
  std::array<void*, kRanks> memory = {};
  std::array<ncclWindow_t, kRanks> windows = {}, others = {};
  for (size_t r = 0; r < kRanks; ++r) {
    UseDevice(static_cast<int>(r));
    ASSERT_NCCL(ncclMemAlloc(&memory[r], kBytes));
  }
  const auto register_all = [&](int flags_of_last) {
    EXPECT_NCCL(ncclGroupStart());
    for (size_t r = 0; r < kRanks; ++r)
      for (ncclWindow_t* window : {&windows[r], &others[r]})
        EXPECT_NCCL(
            ncclCommWindowRegister(comms[r], memory[r], kBytes, window,
                                   r + 1 == kRanks ? flags_of_last : NCCL_WIN_COLL_SYMMETRIC));
    return ncclGroupEnd();
  };
  EXPECT_EQ(register_all(NCCL_WIN_DEFAULT), ncclInvalidArgument);
  EXPECT_THAT(ncclGetLastError(nullptr), ::testing::HasSubstr("and rank 2 ("));
  for (ncclWindow_t window : windows) EXPECT_EQ(window, nullptr);
  ASSERT_EQ(register_all(NCCL_WIN_COLL_SYMMETRIC), ncclSuccess) << ncclGetLastError(nullptr);
  for (size_t r = 0; r < kRanks; ++r) {
    UseDevice(static_cast<int>(r));
    Put(static_cast<int*>(memory[r]), std::vector<int>(kBytes / sizeof(int), static_cast<int>(r)));
  }
  EXPECT_NCCL(ncclGroupStart());
  for (size_t r = 0; r < kRanks; ++r) {
    auto* const values = static_cast<int*>(memory[r]);
    EXPECT_NCCL(
        ncclAllReduce(values, values, kBytes / sizeof(int), ncclInt32, ncclSum, comms[r], nullptr));
  }
  EXPECT_NCCL(ncclGroupEnd());
  for (size_t r = 0; r < kRanks; ++r) {
    UseDevice(static_cast<int>(r));
    EXPECT_NCCL(Finish(comms[r]));
    EXPECT_EQ(Get(static_cast<int*>(memory[r]), kBytes / sizeof(int)).back(), 3);
    EXPECT_NE(windows[r], others[r]);
    EXPECT_NCCL(ncclCommWindowDeregister(comms[r], windows[r]));
    EXPECT_NCCL(ncclCommDestroy(comms[r]));
    EXPECT_NCCL(ncclMemFree(memory[r]));
  }
}

TEST(NonBlockingTest, SplitWithoutColorHasAnsweredWhenTheParentIsAtRest) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(kRanks, [&](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_TRUE(Started(ncclCommInitRankConfig(&comm, kRanks, id, rank, &config)));
    ASSERT_EQ(Settle(comm), ncclSuccess) << ncclGetLastError(comm);
    for (int round = 0; round < 50; ++round) {
      const bool stays_out = rank == round % 2;
      ncclComm_t child = nullptr;
      EXPECT_TRUE(
          Started(ncclCommSplit(comm, stays_out ? NCCL_SPLIT_NOCOLOR : 0, rank, &child, nullptr)));
      ASSERT_EQ(Settle(comm), ncclSuccess) << ncclGetLastError(comm);
      ASSERT_EQ(child == nullptr, stays_out) << "round " << round;
      if (stays_out) continue;
      ASSERT_EQ(Settle(child), ncclSuccess) << ncclGetLastError(child);
      EXPECT_NCCL(ncclCommDestroy(child));
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(SplitTest, PartsByColorAndNumbersByKey) {
  constexpr int kRanks = 5;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t child = nullptr;
    // Ranks 0, 2, 4 backwards; 1 and 3 with equal keys.
    const int color = rank % 2;
    EXPECT_NCCL(ncclCommSplit(world.comm(rank), color, color == 0 ? -rank : 7, &child, nullptr));
    ASSERT_NE(child, nullptr);
    int child_rank = -1, count = -1;
    EXPECT_NCCL(ncclCommUserRank(child, &child_rank));
    EXPECT_NCCL(ncclCommCount(child, &count));
    EXPECT_EQ(count, color == 0 ? 3 : 2);
    EXPECT_EQ(child_rank, color == 0 ? (4 - rank) / 2 : rank / 2);
    ExpectSums(child);
    // A child of a child, while parent and child go on working.
    ncclComm_t grandchild = nullptr;
    EXPECT_NCCL(ncclCommSplit(child, 3, 0, &grandchild, nullptr));
    ASSERT_NE(grandchild, nullptr);
    ExpectSums(world.comm(rank));
    ExpectSums(grandchild);
    EXPECT_NCCL(ncclCommDestroy(child));
    ExpectSums(grandchild);
    EXPECT_NCCL(ncclCommDestroy(grandchild));
  });
}

TEST(SplitTest, WithoutColorGivesNothing) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t child = nullptr;
    EXPECT_NCCL(
        ncclCommSplit(world.comm(rank), rank == 1 ? NCCL_SPLIT_NOCOLOR : 0, 0, &child, nullptr));
    EXPECT_EQ(child == nullptr, rank == 1);
    if (child != nullptr) ExpectSums(child);
    EXPECT_NCCL(ncclCommDestroy(child));
    EXPECT_EQ(ncclCommSplit(world.comm(rank), -2, 0, &child, nullptr), ncclInvalidArgument);
  });
}

TEST(SplitTest, ByOneThreadForAllRanksInAGroup) {
  constexpr int kRanks = 4;
  TUTTI_NEEDS_RANKS(kRanks);
  std::array<ncclComm_t, kRanks> comms{}, children{};
  ASSERT_NCCL(ncclCommInitAll(comms.data(), kRanks, nullptr));
  EXPECT_NCCL(ncclGroupStart());
  for (size_t r = 0; r < kRanks; ++r)
    EXPECT_NCCL(ncclCommSplit(comms[r], static_cast<int>(r) / 2, 0, &children[r], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  Array<int> values = {1, 2, 3, 4};
  EXPECT_NCCL(ncclGroupStart());
  for (size_t r = 0; r < kRanks; ++r)
    EXPECT_NCCL(ncclAllReduce(&values[r], &values[r], 1, ncclInt32, ncclSum, children[r], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  for (ncclComm_t comm : comms) EXPECT_NCCL(Finish(comm));
  EXPECT_EQ(values, (Array<int>{3, 3, 7, 7}));
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_NCCL(ncclCommDestroy(children[r]));
    EXPECT_NCCL(ncclCommDestroy(comms[r]));
  }
}

TEST(ShrinkTest, LeavesOutTheRanksNamed) {
  constexpr int kRanks = 5;
  TUTTI_NEEDS_RANKS(kRanks);
  for (const int flags : {NCCL_SHRINK_DEFAULT, NCCL_SHRINK_ABORT}) {
    ThreadWorld world(kRanks);
    ASSERT_TRUE(world.ok());
    RunRanks(kRanks, [&](int rank) {
      std::array<int, 2> excluded = {3, 1};
      if (rank == 1 || rank == 3) return;
      ncclComm_t child = nullptr;
      EXPECT_NCCL(ncclCommShrink(world.comm(rank), excluded.data(), 2, &child, nullptr, flags));
      ASSERT_NE(child, nullptr);
      int child_rank = -1;
      EXPECT_NCCL(ncclCommUserRank(child, &child_rank));
      EXPECT_EQ(child_rank, rank / 2);
      ExpectSums(child);
      EXPECT_NCCL(ncclCommDestroy(child));
    });
  }
}

// The ranks left out know nothing of a shrink; what all make afterwards must not depend on it.
TEST(ShrinkTest, LeavesTheParentInStepWithTheRanksLeftOut) {
  constexpr int kRanks = 4;
  TUTTI_NEEDS_RANKS(kRanks);
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "20"}});
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    std::array<int, 1> excluded = {3};
    ncclComm_t fewer = nullptr, again = nullptr, split = nullptr, others = nullptr;
    if (rank != 3) {
      ASSERT_NCCL(ncclCommShrink(world.comm(rank), excluded.data(), 1, &fewer, nullptr, 0));
      ASSERT_NCCL(ncclCommShrink(world.comm(rank), excluded.data(), 1, &again, nullptr, 0));
    }
    ASSERT_NCCL(ncclCommSplit(world.comm(rank), rank % 2, 0, &split, nullptr));
    excluded = {0};
    if (rank != 0) {
      ASSERT_NCCL(ncclCommShrink(world.comm(rank), excluded.data(), 1, &others, nullptr, 0));
    }
    for (ncclComm_t comm : {fewer, again, split, others, world.comm(rank)})
      if (comm != nullptr) ExpectSums(comm);
    for (ncclComm_t comm : {fewer, again, split, others}) EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(GrowTest, TakesInNewRanks) {
  constexpr int kOld = 2, kNew = 4;
  TUTTI_NEEDS_RANKS(kNew);
  ThreadWorld world(kOld);
  ASSERT_TRUE(world.ok());
  ncclUniqueId id, second;
  ASSERT_NCCL(ncclCommGetUniqueId(world.comm(1), &id));
  EXPECT_EQ(ncclCommGetUniqueId(world.comm(1), &second), ncclInvalidUsage);
  RunRanks(kNew, [&](int rank) {
    ncclComm_t grown = nullptr;
    const bool is_old = rank < kOld;
    EXPECT_NCCL(ncclCommGrow(is_old ? world.comm(rank) : nullptr, kNew, rank == 0 ? nullptr : &id,
                             is_old ? -1 : rank, &grown, nullptr));
    ASSERT_NE(grown, nullptr);
    int grown_rank = -1;
    EXPECT_NCCL(ncclCommUserRank(grown, &grown_rank));
    EXPECT_EQ(grown_rank, rank);
    ExpectSums(grown);
    if (rank < kOld) ExpectSums(world.comm(rank));
    EXPECT_NCCL(ncclCommDestroy(grown));
  });
}

// The whole family with two ranks, for machines that have no more GPUs.
TEST(TwoRanksTest, SplitShrinkGrowAndJoinBySeveralRoots) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  ncclComm_t old = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&old, 1, nullptr));
  ncclUniqueId grow_id;
  ASSERT_NCCL(ncclCommGetUniqueId(old, &grow_id));
  std::array<ncclUniqueId, 2> ids;
  for (ncclUniqueId& id : ids) ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t turned = nullptr, alone = nullptr, fewer = nullptr, grown = nullptr,
               joined = nullptr;
    ASSERT_NCCL(ncclCommSplit(world.comm(rank), 0, -rank, &turned, nullptr));
    int turned_rank = -1;
    EXPECT_NCCL(ncclCommUserRank(turned, &turned_rank));
    EXPECT_EQ(turned_rank, 1 - rank);
    ASSERT_NCCL(ncclCommSplit(turned, rank, 0, &alone, nullptr));
    int excluded = 1;
    if (rank == 0) {
      ASSERT_NCCL(
          ncclCommShrink(world.comm(0), &excluded, 1, &fewer, nullptr, NCCL_SHRINK_DEFAULT));
    }
    ASSERT_NCCL(ncclCommGrow(rank == 0 ? old : nullptr, kRanks, &grow_id, rank == 0 ? -1 : rank,
                             &grown, nullptr));
    std::array<ncclUniqueId, 2> mine = ids;
    ASSERT_NCCL(ncclCommInitRankScalable(&joined, kRanks, rank, 2, mine.data(), nullptr));
    for (ncclComm_t comm : {turned, alone, fewer, grown, joined, world.comm(rank)})
      if (comm != nullptr) ExpectSums(comm);
    for (ncclComm_t comm : {turned, alone, fewer, grown, joined})
      EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_NCCL(ncclCommDestroy(old));
}

TEST(ScalableTest, SeveralRootsShareTheWork) {
  for (const int num_ids : {1, 2, 3, 7}) {
    constexpr int kRanks = 7;
    TUTTI_NEEDS_RANKS(kRanks);
    std::vector<ncclUniqueId> ids(static_cast<size_t>(num_ids));
    for (ncclUniqueId& id : ids) ASSERT_NCCL(ncclGetUniqueId(&id));
    RunRanks(kRanks, [&](int rank) {
      ncclComm_t comm = nullptr;
      std::vector<ncclUniqueId> mine = ids;
      EXPECT_NCCL(ncclCommInitRankScalable(&comm, kRanks, rank, num_ids, mine.data(), nullptr));
      ASSERT_NE(comm, nullptr);
      ExpectSums(comm);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

TEST(EndTest, FinalizeThenDestroyAndUseIsRefused) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(kRanks, [&](int rank) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, kRanks, id, rank));
    ExpectSums(comm);
    EXPECT_NCCL(ncclCommFinalize(comm));
    Array<int> value = {0};
    const auto reduce = [&] {
      return ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr);
    };
    EXPECT_EQ(reduce(), ncclInvalidUsage);
    EXPECT_NE(ncclCommFinalize(comm), ncclSuccess);
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_EQ(reduce(), ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidArgument);
    EXPECT_NCCL(ncclCommDestroy(nullptr));
    EXPECT_NCCL(ncclCommAbort(nullptr));
  });
}

TEST(EndTest, OneThreadDestroysItsRanksOneAfterAnother) {
  constexpr int kRanks = 4;
  TUTTI_NEEDS_RANKS(kRanks);
  for (const bool finalize : {false, true}) {
    std::array<ncclComm_t, kRanks> comms{};
    ASSERT_NCCL(ncclCommInitAll(comms.data(), kRanks, nullptr));
    if (finalize) {
      EXPECT_NCCL(ncclGroupStart());
      for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommFinalize(comm));
      EXPECT_NCCL(ncclGroupEnd());
    }
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  }
}

// Runs `end` on rank 0 while it waits in an AllReduce that rank 1 never joins, and `afterwards`
// when that wait has ended.
void EndWhileWaiting(
    const std::function<void(ncclComm_t)>& end, bool sockets,
    const std::function<void(ncclComm_t)>& afterwards = [](ncclComm_t) {}) {
  ThreadWorld world(2, {{"NCCL_SHM_DISABLE", sockets ? "1" : "0"}});
  ASSERT_TRUE(world.ok());
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  std::array<ncclComm_t, 2> comms{};
  RunRanks(2, [&](int rank) {
    EXPECT_NCCL(ncclCommInitRank(&comms[static_cast<size_t>(rank)], 2, id, rank));
  });
  std::atomic<pid_t> caller = 0;
  std::atomic<bool> queued = false, ended = false;
  std::thread waiting([&] {
    Array<float> data(OnGpus() ? 1000 : 100000);
    caller = ThisThread();
    const ncclResult_t result = ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32,
                                              ncclSum, comms[0], nullptr);
    // On GPUs the call only queues: the stream is what waits, and ends without an error of CUDA's.
    EXPECT_EQ(result == ncclSuccess, OnGpus());
    queued = true;
    EXPECT_NCCL(FinishDevice(0));
    ended = true;
  });
  while (caller == 0 || (OnGpus() && !queued)) std::this_thread::yield();
  if (!OnGpus()) {
    EXPECT_TRUE(AwaitAsleep(caller));
  }
  EXPECT_FALSE(ended) << "it did not wait for rank 1";
  const auto start = std::chrono::steady_clock::now();
  end(comms[0]);
  waiting.join();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 20 * GpuTimeScale());
  afterwards(comms[0]);
  EXPECT_NCCL(ncclCommAbort(comms[1]));
  // Other communicators of the process are untouched.
  RunRanks(2, [&](int rank) { ExpectSums(world.comm(rank)); });
}

TEST(EndTest, AbortEndsAWaitOfAnotherThread) {
  TUTTI_NEEDS_RANKS(2);
  for (const bool sockets : {false, true})
    EndWhileWaiting([](ncclComm_t comm) { EXPECT_NCCL(ncclCommAbort(comm)); }, sockets);
}

TEST(EndTest, RevokeEndsAWaitAndKeepsTheCommunicatorForShrinking) {
  TUTTI_NEEDS_RANKS(2);
  for (const bool sockets : {false, true}) {
    EndWhileWaiting(
        [](ncclComm_t comm) {
          EXPECT_NCCL(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT));
          Array<float> value = {0};
          EXPECT_EQ(
              ncclAllReduce(value.data(), value.data(), 1, ncclFloat32, ncclSum, comm, nullptr),
              ncclInvalidUsage);
        },
        sockets, [](ncclComm_t comm) { EXPECT_NCCL(ncclCommDestroy(comm)); });
  }
}

TEST(EndTest, RevokedRanksSplitAnew) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    ExpectSums(world.comm(rank));
    EXPECT_NCCL(ncclCommRevoke(world.comm(rank), NCCL_REVOKE_DEFAULT));
    EXPECT_EQ(ncclCommRevoke(world.comm(rank), 5), ncclInvalidArgument);
    ncclComm_t child = nullptr;
    EXPECT_NCCL(ncclCommSplit(world.comm(rank), 0, 0, &child, nullptr));
    ASSERT_NE(child, nullptr);
    ExpectSums(child);
    EXPECT_NCCL(ncclCommDestroy(child));
  });
}

size_t ResidentPages() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident;
}

TEST(LeakTest, CommunicatorsLeaveNothingBehind) {
  TUTTI_NEEDS_RANKS(2);
  const auto round = [](bool sockets) {
    ThreadWorld world(2, {{"NCCL_SHM_DISABLE", sockets ? "1" : "0"}});
    RunRanks(2, [&](int rank) {
      ncclComm_t child = nullptr;
      EXPECT_NCCL(ncclCommSplit(world.comm(rank), 0, 0, &child, nullptr));
      Array<float> data(50000);
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum,
                                world.comm(rank), nullptr));
      EXPECT_NCCL(Finish(world.comm(rank)));
      ExpectSums(child);
      EXPECT_NCCL(ncclCommDestroy(child));
    });
  };
  for (int i = 0; i < 10; ++i) round(i % 2 == 0);  // pools fill up
  // The library's own threads close what a destroyed communicator held, and then sleep.
  EXPECT_TRUE(AwaitAllAsleep("tutti-"));
  const size_t fds = EntriesIn("/proc/self/fd");
  const size_t threads = EntriesIn("/proc/self/task");
  size_t pages = ResidentPages();
  for (int i = 0; i < 50; ++i) round(i % 2 == 0);
  const auto closed = [&] {
    return EntriesIn("/proc/self/fd") <= fds + 2 && EntriesIn("/proc/self/task") <= threads + 1;
  };
  for (int i = 0; i < 150 && !closed(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(EntriesIn("/proc/self/fd"), fds + 2);
  EXPECT_LE(EntriesIn("/proc/self/task"), threads + 1);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these keep freed memory
  // The allocator keeps more for threads that happen to run at once, but not more and more.
  constexpr size_t kMorePages = 2048;
  for (int again = 0; again < 2 && ResidentPages() >= pages + kMorePages; ++again) {
    pages = ResidentPages();
    for (int i = 0; i < 50; ++i) round(i % 2 == 0);
  }
  EXPECT_LT(ResidentPages(), pages + kMorePages)
      << "more than 8 MB more after 100 communicators, again and again";
#else
  static_cast<void>(pages);
#endif
}

TEST(ConfigTest, OfOldAndNewHeadersAreTaken) {
  const auto init = [](ncclConfig_t config) {
    ncclUniqueId id;
    EXPECT_NCCL(ncclGetUniqueId(&id));
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    EXPECT_EQ(comm != nullptr, result == ncclSuccess);
    EXPECT_NCCL(ncclCommDestroy(comm));
    return result;
  };
  const ncclConfig_t plain = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(init(plain), ncclSuccess);
  ncclConfig_t old = plain;  // NCCL 2.14: up to `blocking`
  old.size = offsetof(ncclConfig_t, cgaClusterSize);
  old.version = NCCL_VERSION(2, 14, 3);
  old.minCTAs = -5;  // lies beyond the end: not looked at
  EXPECT_EQ(init(old), ncclSuccess);
  ncclConfig_t bad = plain;
  bad.magic = 1;
  EXPECT_EQ(init(bad), ncclInvalidArgument);
  bad = plain;
  bad.blocking = 2;
  EXPECT_EQ(init(bad), ncclInvalidArgument);
  bad = plain;
  bad.minCTAs = 0;
  EXPECT_EQ(init(bad), ncclInvalidArgument);
  bad = plain;
  bad.minCTAs = 4;
  bad.maxCTAs = 2;
  EXPECT_EQ(init(bad), ncclInvalidArgument);
  bad = plain;
  bad.maxCTAs = 0;
  EXPECT_EQ(init(bad), ncclInvalidArgument);
  for (const int size : {-1, 9}) {
    bad = plain;
    bad.cgaClusterSize = size;
    EXPECT_EQ(init(bad), ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(nullptr), ::testing::HasSubstr("from 0 to 8"));
  }
  for (const int channels : {0, 3}) {
    bad = plain;
    bad.nChannelsPerNetPeer = channels;
    EXPECT_EQ(init(bad), ncclInvalidArgument);
  }
  for (int ncclConfig_t::*flag : {&ncclConfig_t::splitShare, &ncclConfig_t::shrinkShare,
                                  &ncclConfig_t::collnetEnable, &ncclConfig_t::graphUsageMode}) {
    bad = plain;
    bad.*flag = 3;
    EXPECT_EQ(init(bad), ncclInvalidArgument);
  }
  ncclConfig_t wishes = plain;
  wishes.cgaClusterSize = 8;
  wishes.nChannelsPerNetPeer = 4;
  wishes.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  wishes.graphUsageMode = 2;
  EXPECT_EQ(init(wishes), ncclSuccess);
  ncclConfig_t named = plain;
  named.commName = "trainer";
  named.netName = "Socket";
  EXPECT_EQ(init(named), ncclSuccess);
}

TEST(CommIdTest, AFixedAddressServesEveryRank) {
  // Below those that the system gives to whoever connects.
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  const Environment environment(
      {{"NCCL_COMM_ID", fmt::format("127.0.0.1:{}", 20000 + getpid() % 12000)},
       {"TUTTI_COMM_KEY", "a secret of three"}});
  RunRanks(kRanks, [&](int rank) {
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));  // each its own call, as programs without a launcher do
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, kRanks, id, rank));
    ExpectSums(comm);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
}  // namespace tutti::testing
