// Memory phases: a communicator gives its memory back and takes it again (ncclCommSuspend,
// ncclCommResume).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "conformance/cases.h"
#include "conformance/suites.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

// Returns how many bytes of pages this process has in mappings of shared memory whose names contain
// `name`.
size_t ResidentBytes(const std::string& name) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool named = false;
  size_t bytes = 0, kib = 0;
  while (std::getline(maps, line)) {
    const bool begins_mapping = line.find('-') < line.find(' ');
    if (begins_mapping) named = line.find(name) != std::string::npos;
    if (named && sscanf(line.c_str(), "Rss: %zu kB", &kib) == 1) bytes += kib << 10;
  }
  return bytes;
}

uint64_t StatOf(ncclComm_t comm, ncclCommMemStat_t stat) {
  uint64_t value = 0;
  EXPECT_NCCL(ncclCommMemStats(comm, stat, &value));
  return value;
}

void SuspendAll(const ThreadWorld& world) {
  RunRanks(world.num_ranks(),
           [&](int rank) { EXPECT_NCCL(ncclCommSuspend(world.comm(rank), NCCL_SUSPEND_MEM)); });
}
void ResumeAll(const ThreadWorld& world) {
  RunRanks(world.num_ranks(), [&](int rank) { EXPECT_NCCL(ncclCommResume(world.comm(rank))); });
}

std::vector<Case> SomeOfAll(int num_ranks) {
  return EveryCount(num_ranks, {1, 777, OnGpus() ? size_t{20000} : size_t{300000}});
}

class SuspendTest : public ::testing::TestWithParam<int> {};

TEST_P(SuspendTest, ResultsAreRightBeforeAndAfter) {
  TUTTI_NEEDS_RANKS(GetParam());
  ThreadWorld world(GetParam());
  ASSERT_TRUE(world.ok());
  for (int phase = 0; phase < 3; ++phase) {
    world.Run(SomeOfAll(GetParam()));
    SuspendAll(world);
    ResumeAll(world);
  }
  world.Run(SomeOfAll(GetParam()));
}

TEST_P(SuspendTest, TheMemoryIsFreeMeanwhile) {
  TUTTI_NEEDS_RANKS(GetParam());
  ThreadWorld world(GetParam());
  ASSERT_TRUE(world.ok());
  world.Run(SomeOfAll(GetParam()));
  const uint64_t given = StatOf(world.comm(0), ncclStatGpuMemSuspend);
  EXPECT_GT(given, 1u << 20);
  EXPECT_EQ(StatOf(world.comm(0), ncclStatGpuMemSuspended), 0);
  EXPECT_EQ(StatOf(world.comm(0), ncclStatGpuMemTotal),
            given + StatOf(world.comm(0), ncclStatGpuMemPersist));
  // Ranks may share a GPU, which then has more of it.
  std::vector<size_t> left(static_cast<size_t>(GetParam()));
  const auto count_left = [&](auto f) {
    RunRanks(GetParam(), [&](int rank) { f(FreeDeviceBytes(), left[static_cast<size_t>(rank)]); });
  };
  if (OnGpus()) count_left([](size_t now, size_t& kept) { kept = now; });
  const size_t shared = ResidentBytes("memfd:tutti");
  SuspendAll(world);
  EXPECT_EQ(StatOf(world.comm(0), ncclStatGpuMemSuspended), 1);
  if (WhereTestsRun() == Place::kHost) {
    EXPECT_GT(shared, 1u << 20);
    EXPECT_LT(ResidentBytes("memfd:tutti"), shared / 8);
  } else {
    count_left([&](size_t now, size_t before) { EXPECT_GE(now, before + given); });
  }
  ResumeAll(world);
  if (OnGpus()) count_left([](size_t now, size_t before) { EXPECT_LE(now, before); });
  EXPECT_EQ(StatOf(world.comm(0), ncclStatGpuMemSuspended), 0);
}

// Windows in memory of the host are given back as well.
TEST_P(SuspendTest, PinnedWindowsAreFreeMeanwhile) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(GetParam());
  ThreadWorld world(GetParam(), {{"NCCL_P2P_DISABLE", "1"}});
  ASSERT_TRUE(world.ok());
  world.Run(SomeOfAll(GetParam()));
  const size_t shared = ResidentBytes("memfd:tutti");
  EXPECT_GT(shared, 1u << 20);
  SuspendAll(world);
  EXPECT_EQ(ResidentBytes("memfd:tutti"), 0);
  ResumeAll(world);
  world.Run(SomeOfAll(GetParam()));
}

// The kernels of a graph hold the addresses of windows.
TEST_P(SuspendTest, AGraphRunsAgainAfterwards) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(GetParam());
  ThreadWorld world(GetParam());
  ASSERT_TRUE(world.ok());
  RunRanks(GetParam(), [&](int rank) {
    ncclComm_t comm = world.comm(rank);
    cudaStream_t stream = nullptr;
    ASSERT_NCCL(StreamCreate(&stream));
    Array<int> in(5000, rank + 1), out(5000, 0);
    {
      CapturedGraph graph(stream, [&] {
        EXPECT_NCCL(
            ncclAllReduce(in.data(), out.data(), in.size(), ncclInt32, ncclSum, comm, stream));
      });
      for (int phase = 0; phase < 2; ++phase) {
        std::fill(out.begin(), out.end(), 0);
        graph.Replay();
        EXPECT_THAT(out, ::testing::Each(GetParam() * (GetParam() + 1) / 2));
        ASSERT_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
        ASSERT_NCCL(ncclCommResume(comm));
      }
      graph.Replay();
    }
    EXPECT_NCCL(StreamDestroy(stream));
  });
}

// Somebody else has the memory of the GPUs when it is wanted again.
TEST_P(SuspendTest, WhatCannotBeTakenAgainStaysSuspended) {
  TUTTI_FOR_GPUS();
  TUTTI_NEEDS_RANKS(GetParam());
  if (getenv("TUTTI_FAKE_GPUS") == nullptr) GTEST_SKIP() << "skipped: needs the stand-in for GPUs";
  ThreadWorld world(GetParam());
  ASSERT_TRUE(world.ok());
  world.Run({Case{.count = 1000}});
  SuspendAll(world);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Environment full(Environment::Settings{{"TUTTI_FAKE_MEMORY", "4096"}});
    RunRanks(GetParam(), [&](int rank) {
      EXPECT_EQ(ncclCommResume(world.comm(rank)), ncclUnhandledCudaError);
      EXPECT_THAT(ncclGetLastError(world.comm(rank)), HasSubstr("allocating"));
      EXPECT_EQ(StatOf(world.comm(rank), ncclStatGpuMemSuspended), 1);
    });
  }
  ResumeAll(world);
  world.Run(SomeOfAll(GetParam()));
}

TEST_P(SuspendTest, OperationsAreRefusedMeanwhile) {
  TUTTI_NEEDS_RANKS(GetParam());
  ThreadWorld world(GetParam());
  ASSERT_TRUE(world.ok());
  SuspendAll(world);
  for (int rank = 0; rank < GetParam(); ++rank) {
    ncclComm_t comm = world.comm(rank);
    Array<int> data = {1};
    ncclWindow_t window = nullptr;
    EXPECT_EQ(ncclAllReduce(data.data(), data.data(), 1, ncclInt32, ncclSum, comm, nullptr),
              ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("suspended"));
    EXPECT_EQ(ncclSend(data.data(), 1, ncclInt32, 0, comm, nullptr), ncclInvalidUsage);
    EXPECT_EQ(ncclCommWindowRegister(comm, nullptr, 4096, &window, 0), ncclInvalidUsage);
    EXPECT_EQ(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("suspended"));
    ncclResult_t state = ncclSystemError;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess);
  }
  ResumeAll(world);
  world.Run({Case{.count = 1000}});
}

// The destructor of the world ends what is suspended.
TEST_P(SuspendTest, IsDestroyedOrAbortedMeanwhile) {
  TUTTI_NEEDS_RANKS(GetParam());
  for (const bool abort : {false, true}) {
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    RunRanks(GetParam(), [&](int rank) {
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, GetParam(), id, rank));
      ASSERT_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
      EXPECT_NCCL(abort ? ncclCommAbort(comm) : ncclCommDestroy(comm));
    });
  }
}

// A child has memory of its own.
TEST_P(SuspendTest, AChildWorksMeanwhile) {
  TUTTI_NEEDS_RANKS(GetParam());
  ThreadWorld world(GetParam());
  ASSERT_TRUE(world.ok());
  RunRanks(GetParam(), [&](int rank) {
    ncclComm_t child = nullptr;
    ASSERT_NCCL(ncclCommSuspend(world.comm(rank), NCCL_SUSPEND_MEM));
    ASSERT_NCCL(ncclCommSplit(world.comm(rank), 0, rank, &child, nullptr));
    RunCase(child, Case{.count = 1000});
    EXPECT_NCCL(ncclCommDestroy(child));
    ASSERT_NCCL(ncclCommResume(world.comm(rank)));
    RunCase(world.comm(rank), Case{.count = 1000});
  });
}

TEST_P(SuspendTest, WithoutBlocking) {
  TUTTI_NEEDS_RANKS(GetParam());
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  RunRanks(GetParam(), [&](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclCommInitRankConfig(&comm, GetParam(), id, rank, &config), ncclInProgress);
    ASSERT_EQ(Settle(comm), ncclSuccess);
    ASSERT_EQ(ncclCommSuspend(comm, NCCL_SUSPEND_MEM), ncclInProgress);
    ASSERT_EQ(Settle(comm), ncclSuccess);
    EXPECT_EQ(StatOf(comm, ncclStatGpuMemSuspended), 1);
    ASSERT_EQ(ncclCommResume(comm), ncclInProgress);
    ASSERT_EQ(Settle(comm), ncclSuccess);
    Array<int> sum = {1};
    const ncclResult_t result =
        ncclAllReduce(sum.data(), sum.data(), 1, ncclInt32, ncclSum, comm, nullptr);
    EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress);
    EXPECT_EQ(Settle(comm), ncclSuccess);
    EXPECT_NCCL(Finish(comm));
    EXPECT_EQ(sum[0], GetParam());
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SuspendTest, ::testing::Values(2, 3, 4));

// ---------------------------------------------------------------------------------------------------------------------
// Mistakes

// Expects that every rank refuses with a sentence in which `what` stands.
void ExpectRefusal(const ThreadWorld& world, const std::string& what) {
  RunRanks(world.num_ranks(), [&](int rank) {
    EXPECT_EQ(ncclCommSuspend(world.comm(rank), NCCL_SUSPEND_MEM), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(world.comm(rank)), HasSubstr(what));
    EXPECT_EQ(StatOf(world.comm(rank), ncclStatGpuMemSuspended), 0);
  });
}

TEST(SuspendMistakeTest, ResumeOfWhatIsNotSuspended) {
  TUTTI_NEEDS_RANKS(2);
  ThreadWorld world(2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ncclCommResume(world.comm(rank)), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(world.comm(rank)), HasSubstr("not suspended"));
  }
  world.Run({Case{.count = 1000}});
}

TEST(SuspendMistakeTest, AllHearOfOneRanksFlags) {
  TUTTI_NEEDS_RANKS(2);
  ThreadWorld world(2);
  RunRanks(2, [&](int rank) {
    EXPECT_EQ(ncclCommSuspend(world.comm(rank), rank == 1 ? 2 : NCCL_SUSPEND_MEM),
              ncclInvalidArgument);
    EXPECT_THAT(ncclGetLastError(world.comm(rank)), HasSubstr("flags is 0x2"));
  });
  world.Run({Case{.count = 1000}});
}

TEST(SuspendMistakeTest, AMessageThatNobodyHasReceived) {
  TUTTI_NEEDS_RANKS(2);
  for (const size_t count : {1, 1000}) {
    ThreadWorld world(2);
    Array<int> data(count, 7), received(count, 0);
    RunRanks(2, [&](int rank) {
      if (rank == 1) return;
      EXPECT_NCCL(ncclSend(data.data(), count, ncclInt32, 1, world.comm(0), nullptr));
      EXPECT_NCCL(Finish(world.comm(0)));
    });
    ExpectRefusal(world, "receive");
    RunRanks(2, [&](int rank) {
      if (rank == 0) return;
      EXPECT_NCCL(ncclRecv(received.data(), count, ncclInt32, 0, world.comm(1), nullptr));
      EXPECT_NCCL(Finish(world.comm(1)));
    });
    EXPECT_EQ(received, data);
    SuspendAll(world);
    ResumeAll(world);
    world.Run({Case{.count = 1000}});
  }
}

// The root of a Broadcast may be done before the others call it, and these before the root of a
// Reduce. On GPUs it may also be under way until all have called it.
TEST(SuspendMistakeTest, ACollectiveThatNotAllHaveCalled) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  for (const bool reduces : {false, true}) {
    ThreadWorld world(kRanks);
    std::vector<Array<int>> in(kRanks, Array<int>(64, 7)), out(kRanks, Array<int>(64, 0));
    const auto call = [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      if (reduces)
        EXPECT_NCCL(ncclReduce(in[r].data(), out[r].data(), 64, ncclInt32, ncclSum, 0,
                               world.comm(rank), nullptr));
      else
        EXPECT_NCCL(ncclBroadcast(in[r].data(), out[r].data(), 64, ncclInt32, 0, world.comm(rank),
                                  nullptr));
    };
    RunRanks(kRanks, [&](int rank) {
      if ((rank == 0) != reduces) call(rank);
    });
    ExpectRefusal(world, "before ncclCommSuspend");
    RunRanks(kRanks, [&](int rank) {
      if ((rank == 0) == reduces) call(rank);
      EXPECT_NCCL(Finish(world.comm(rank)));
    });
    EXPECT_EQ(out[0], Array<int>(64, reduces ? 21 : 7));
    SuspendAll(world);
    ResumeAll(world);
    world.Run({Case{.count = 1000}});
  }
}

TEST(SuspendMistakeTest, AnOperationUnderWay) {
  TUTTI_NEEDS_RANKS(2);
  ThreadWorld world(2);
  ASSERT_TRUE(world.ok());
  Array<int> data = {1, 2};
  cudaStream_t stream = nullptr;
  RunRanks(2, [&](int rank) {
    if (rank == 1) return;
    ASSERT_NCCL(StreamCreate(&stream));
    ASSERT_NCCL(ncclRecv(data.data(), 2, ncclInt32, 1, world.comm(0), stream));
  });
  ExpectRefusal(world, "under way");
  RunRanks(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_NCCL(StreamSynchronize(stream));
      EXPECT_NCCL(StreamDestroy(stream));
    } else {
      Array<int> sent = {3, 4};
      EXPECT_NCCL(ncclSend(sent.data(), 2, ncclInt32, 0, world.comm(1), nullptr));
      EXPECT_NCCL(Finish(world.comm(1)));
    }
  });
  EXPECT_THAT(data, ::testing::ElementsAre(3, 4));
  SuspendAll(world);
  ResumeAll(world);
}

// GPUs that the network joins say that they cannot; hosts give back what lies between the ranks of
// one machine, which may be nothing.
TEST(SuspendMistakeTest, RanksThatANetworkJoins) {
  TUTTI_NEEDS_RANKS(2);
  ThreadWorld world(2, {{"NCCL_SHM_DISABLE", "1"}, {"NCCL_P2P_DISABLE", "1"}});
  ASSERT_TRUE(world.ok());
  world.Run({Case{.count = 1000}});
  if (OnGpus()) {
    ExpectRefusal(world, "cannot be given back yet");
  } else {
    SuspendAll(world);
    ResumeAll(world);
  }
  world.Run({Case{.count = 1000}});
}

TEST(SuspendMistakeTest, ARankAloneSuspendsAndResumes) {
  ThreadWorld world(1);
  SuspendAll(world);
  ResumeAll(world);
  world.Run({Case{.count = 1000}});
}

}  // namespace
}  // namespace tutti::testing
