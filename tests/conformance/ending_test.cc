// Communicators that are ended, or whose making fails, while something else goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "conformance/cases.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using Clock = std::chrono::steady_clock;

// A wait that is told to end does so at once. One that was not told would last as long as
// initialisation may take.
constexpr auto kBound = std::chrono::seconds(20);

void Pause(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void ExpectSums(ncclComm_t comm) {
  int rank = -1, count = 0;
  EXPECT_NCCL(ncclCommUserRank(comm, &rank));
  EXPECT_NCCL(ncclCommCount(comm, &count));
  Array<int> sum = {rank};
  ncclResult_t result = ncclAllReduce(sum.data(), sum.data(), 1, ncclInt32, ncclSum, comm, nullptr);
  EXPECT_TRUE(result == ncclSuccess || result == ncclInProgress);
  EXPECT_EQ(Settle(comm), ncclSuccess);
  EXPECT_NCCL(Finish(comm));
  EXPECT_EQ(sum[0], count * (count - 1) / 2);
}

// Ranks that are threads, with non-blocking communicators.
template <size_t kRanks>
std::array<ncclComm_t, kRanks> NonBlockingRanks() {
  ncclUniqueId id;
  EXPECT_NCCL(ncclGetUniqueId(&id));
  std::array<ncclComm_t, kRanks> comms{};
  for (size_t r = 0; r < kRanks; ++r) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    UseDevice(static_cast<int>(r));
    EXPECT_EQ(ncclCommInitRankConfig(&comms[r], static_cast<int>(kRanks), id, static_cast<int>(r),
                                     &config),
              ncclInProgress);
  }
  for (ncclComm_t comm : comms) EXPECT_EQ(Settle(comm), ncclSuccess);
  return comms;
}

// Waits until the library's threads that make `comm` sleep, and checks that it is not made.
void ExpectStuckInitialisation(ncclComm_t comm) {
  EXPECT_TRUE(AwaitAllAsleep("tutti-stream"));
  ncclResult_t state = ncclSuccess;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
  EXPECT_EQ(state, ncclInProgress);
}

// What a child has not connected before its parent's abort it must be able to connect after it.
TEST(OrphanTest, ConnectsSplitsAndShrinksAfterItsParentIsAborted) {
  constexpr int kRanks = 5;
  TUTTI_NEEDS_RANKS(kRanks);
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    ncclUniqueId id;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    std::atomic<int> aborted = 0;
    RunRanks(kRanks, [&](int rank) {
      ncclComm_t parent = nullptr, child = nullptr, split = nullptr, fewer = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&parent, kRanks, id, rank));
      int gone = kRanks - 1;
      if (rank != gone) {
        ASSERT_NCCL(ncclCommShrink(parent, &gone, 1, &child, nullptr, NCCL_SHRINK_ABORT));
      }
      EXPECT_NCCL(ncclCommAbort(parent));
      if (rank == gone) return;
      ++aborted;
      while (aborted < kRanks - 1) Pause(1);
      Array<int> out(kRanks - 1), in(kRanks - 1);
      for (size_t i = 0; i < out.size(); ++i) out[i] = 10 * rank + static_cast<int>(i);
      EXPECT_NCCL(ncclAlltoAll(out.data(), in.data(), 1, ncclInt32, child, nullptr));
      EXPECT_NCCL(Finish(child));
      for (size_t i = 0; i < in.size(); ++i) EXPECT_EQ(in[i], 10 * static_cast<int>(i) + rank);
      ASSERT_NCCL(ncclCommSplit(child, rank % 2, 0, &split, nullptr));
      ExpectSums(split);
      gone = 0;
      if (rank != 0) {
        ASSERT_NCCL(ncclCommShrink(child, &gone, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
        ExpectSums(fewer);
        EXPECT_NCCL(ncclCommDestroy(fewer));
      }
      EXPECT_NCCL(ncclCommDestroy(split));
      EXPECT_NCCL(ncclCommAbort(child));
    });
  }
}

// Rank 0 splits; rank 1 never does.
TEST(UnfinishedSplitTest, EndsWithTheAbortOfTheChildOrOfTheParent) {
  TUTTI_NEEDS_RANKS(2);
  for (const bool abort_child_first : {true, false}) {
    const std::array<ncclComm_t, 2> comms = NonBlockingRanks<2>();
    ncclComm_t child = nullptr;
    EXPECT_EQ(ncclCommSplit(comms[0], 0, 0, &child, nullptr), ncclInProgress);
    ASSERT_NE(child, nullptr);
    ExpectStuckInitialisation(child);
    const auto start = Clock::now();
    if (abort_child_first) {
      EXPECT_NCCL(ncclCommAbort(child));
      EXPECT_EQ(Settle(comms[0]), ncclSuccess) << "the parent is as good as before";
      EXPECT_NCCL(ncclCommAbort(comms[0]));
    } else {
      EXPECT_NCCL(ncclCommAbort(comms[0]));
      EXPECT_NE(Settle(child), ncclSuccess);
      EXPECT_NCCL(ncclCommAbort(child));
    }
    EXPECT_LT(Clock::now() - start, kBound);
    EXPECT_NCCL(ncclCommAbort(comms[1]));
  }
}

// The others hear of it at once, also one that begins the split afterwards, and all go on with the
// parent.
TEST(UnfinishedSplitTest, AbortedOnOneRankEndsOnAllRanks) {
  constexpr size_t kRanks = 3;
  TUTTI_NEEDS_RANKS(3);
  const std::array<ncclComm_t, kRanks> comms = NonBlockingRanks<kRanks>();
  std::array<ncclComm_t, kRanks> children{};
  const auto split = [&](size_t r) {
    EXPECT_EQ(ncclCommSplit(comms[r], 0, 0, &children[r], nullptr), ncclInProgress);
    ASSERT_NE(children[r], nullptr);
  };
  split(0);
  split(1);
  for (size_t r = 0; r < 2; ++r) ExpectStuckInitialisation(children[r]);
  const auto start = Clock::now();
  EXPECT_NCCL(ncclCommAbort(children[0]));
  for (const size_t r : {1, 2}) {
    if (r == 2) split(r);
    EXPECT_EQ(Settle(children[r]), ncclRemoteError);
    EXPECT_THAT(ncclGetLastError(children[r]),
                ::testing::AllOf(::testing::HasSubstr("rank 0 "),
                                 ::testing::HasSubstr("gave up, in ncclCommSplit: the communicator "
                                                      "that was being made was aborted there")));
    EXPECT_NCCL(ncclCommAbort(children[r]));
  }
  EXPECT_LT(Clock::now() - start, kBound);
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(Settle(comms[r]), ncclSuccess) << "the parent is as good as before";
    split(r);
  }
  for (ncclComm_t child : children) EXPECT_EQ(Settle(child), ncclSuccess);
  RunRanks(kRanks, [&](int rank) { ExpectSums(children[static_cast<size_t>(rank)]); });
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_NCCL(ncclCommDestroy(children[r]));
    EXPECT_NCCL(ncclCommDestroy(comms[r]));
  }
}

// The same where the split has begun to join the child's members: one of them is missing there.
TEST(UnfinishedSplitTest, EndsInsideTheChildsOwnInitialisation) {
  TUTTI_NEEDS_RANKS(3);
  const std::array<ncclComm_t, 3> comms = NonBlockingRanks<3>();
  std::array<ncclComm_t, 3> children{};
  // Only two of the three that would stay shrink: both wait for the third inside the child.
  int gone = 2;
  for (size_t r = 0; r < 1; ++r)
    EXPECT_EQ(ncclCommShrink(comms[r], &gone, 1, &children[r], nullptr, NCCL_SHRINK_DEFAULT),
              ncclInProgress);
  ExpectStuckInitialisation(children[0]);
  const auto start = Clock::now();
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  EXPECT_NE(Settle(children[0]), ncclSuccess);
  EXPECT_NCCL(ncclCommAbort(children[0]));
  EXPECT_LT(Clock::now() - start, kBound);
  for (size_t r = 1; r < 3; ++r) EXPECT_NCCL(ncclCommAbort(comms[r]));
}

TEST(UnfinishedSplitTest, IsFinishedBeforeItsParentIsDestroyed) {
  TUTTI_NEEDS_RANKS(2);
  for (int round = 0; round < 20; ++round) {
    const std::array<ncclComm_t, 2> comms = NonBlockingRanks<2>();
    std::array<ncclComm_t, 2> children{};
    for (size_t r = 0; r < 2; ++r)
      EXPECT_EQ(ncclCommSplit(comms[r], 0, 0, &children[r], nullptr), ncclInProgress);
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
    RunRanks(2, [&](int rank) { ExpectSums(children[static_cast<size_t>(rank)]); });
    for (ncclComm_t child : children) EXPECT_NCCL(ncclCommDestroy(child));
  }
}

// Rank 0's stream does not get to the operation before `go`; the other rank never calls.
TEST(AbortTest, DoesNotWaitForAStreamThatDoesNotMove) {
  TUTTI_NEEDS_RANKS(2);
  const std::array<ncclComm_t, 2> comms = NonBlockingRanks<2>();
  cudaStream_t stream = nullptr;
  UseDevice(0);
  ASSERT_NCCL(StreamCreate(&stream));
  std::atomic<bool> go = false;
  EXPECT_NCCL(StreamLaunchHostFunc(
      stream,
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) Pause(1);
      },
      &go));
  Array<int> value = {1};
  EXPECT_NCCL(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comms[0], stream));
  const auto start = Clock::now();
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  go = true;
  EXPECT_EQ(StreamSynchronize(stream), OnGpus() ? ncclSuccess : ncclInvalidUsage);
  EXPECT_EQ(value[0], 1);
  EXPECT_NCCL(StreamDestroy(stream));
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

TEST(ForkTest, RefusesTheParentsCommunicatorsInTheChild) {
  TUTTI_NEEDS_RANKS(2);
  Array<int> value = {1};
  std::array<ncclComm_t, 2> comms{};
  ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool refused = ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comms[0],
                                       nullptr) == ncclInvalidUsage &&
                         ncclCommAbort(comms[0]) == ncclInvalidUsage &&
                         ncclCommDestroy(comms[1]) == ncclInvalidUsage;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  RunRanks(2, [&](int rank) { ExpectSums(comms[static_cast<size_t>(rank)]); });
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

// The thread that would run what is enqueued stays behind in the parent.
TEST(ForkTest, RefusesTheParentsStreamsAndEventsInTheChild) {
  TUTTI_FOR_HOSTS("about host streams");
  cudaStream_t stream = nullptr;
  tuttiEvent_t event = nullptr;
  ASSERT_NCCL(tuttiStreamCreate(&stream));
  ASSERT_NCCL(tuttiEventCreate(&event));
  ASSERT_NCCL(tuttiEventRecord(event, stream));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);
    const bool refused = tuttiStreamLaunchHostFunc(
                             stream, [](void*) {}, nullptr) == ncclInvalidUsage &&
                         tuttiStreamSynchronize(stream) == ncclInvalidUsage &&
                         tuttiStreamWaitEvent(nullptr, event) == ncclInvalidUsage &&
                         tuttiStreamDestroy(stream) == ncclInvalidUsage &&
                         tuttiEventDestroy(event) == ncclInvalidUsage;
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NCCL(tuttiStreamSynchronize(stream));
  EXPECT_NCCL(tuttiEventDestroy(event));
  EXPECT_NCCL(tuttiStreamDestroy(stream));
}

TEST(FailedGroupTest, LeavesTheParentsOfItsSplitsAtRest) {
  TUTTI_NEEDS_RANKS(2);
  std::array<ncclComm_t, 2> comms{}, children{};
  ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
  EXPECT_NCCL(ncclGroupStart());
  for (size_t r = 0; r < 2; ++r) EXPECT_NCCL(ncclCommSplit(comms[r], 0, 0, &children[r], nullptr));
  EXPECT_EQ(ncclCommSplit(comms[0], -5, 0, &children[0], nullptr), ncclInvalidArgument);
  ncclComm_t kept = children[1];
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  for (ncclComm_t comm : comms) {
    ncclResult_t state = ncclInProgress;
    EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclSuccess);
  }
  EXPECT_NE(Settle(kept), ncclSuccess);
  EXPECT_NCCL(ncclCommDestroy(kept));
  RunRanks(2, [&](int rank) { ExpectSums(comms[static_cast<size_t>(rank)]); });
  for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(SimulatedGroupTest, MakesNoCommunicatorsNorDoesTheNextGroup) {
  TUTTI_NEEDS_RANKS(2);
  std::array<ncclComm_t, 2> comms{}, children{};
  ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  EXPECT_NCCL(ncclGroupStart());
  for (size_t r = 0; r < 2; ++r) EXPECT_NCCL(ncclCommSplit(comms[r], 0, 0, &children[r], nullptr));
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidUsage);
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclGroupEnd());
  for (size_t r = 0; r < 2; ++r) {
    ncclResult_t state = ncclInProgress;
    EXPECT_NCCL(ncclCommGetAsyncError(comms[r], &state));
    EXPECT_EQ(state, ncclSuccess);
    int count = 0;
    EXPECT_NE(ncclCommCount(children[r], &count), ncclSuccess) << "a dropped split was made";
    EXPECT_NCCL(ncclCommDestroy(children[r]));
    EXPECT_NCCL(ncclCommDestroy(comms[r]));
  }
}

TEST(GroupLifeTest, RefusesOperationsOfACommunicatorDestroyedInside) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  Array<int> value = {1};
  EXPECT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr));
  EXPECT_NCCL(ncclCommDestroy(comm));
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
}

// Another thread aborts a blocking initialisation through the handle that it finds.
TEST(AbortTest, EndsABlockingInitialisationOfAnotherThread) {
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  std::atomic<ncclComm_t> found = nullptr;
  // The variable that the library fills; read through an atomic view while it works.
  ncclComm_t comm = nullptr;
  std::atomic<pid_t> caller = 0;
  std::thread waiting([&] {
    UseDevice(0);
    caller = ThisThread();
    EXPECT_NE(ncclCommInitRank(&comm, 2, id, 0), ncclSuccess) << "there is no rank 1";
  });
  while (found == nullptr) {
    found = __atomic_load_n(&comm, __ATOMIC_ACQUIRE);
    Pause(1);
  }
  EXPECT_TRUE(AwaitAsleep(caller));
  const auto start = Clock::now();
  EXPECT_NCCL(ncclCommAbort(found));
  waiting.join();
  EXPECT_LT(Clock::now() - start, kBound);
}

TEST(FinalizeTest, OfANonBlockingCommunicatorGoesOnInTheBackground) {
  const std::array<ncclComm_t, 1> comms = NonBlockingRanks<1>();
  cudaStream_t stream;
  ASSERT_NCCL(StreamCreate(&stream));
  std::atomic<bool> go = false, ran = false;
  EXPECT_NCCL(StreamLaunchHostFunc(
      stream,
      [](void* flag) {
        while (!*static_cast<std::atomic<bool>*>(flag)) Pause(1);
      },
      &go));
  Array<int> value = {3};
  EXPECT_NCCL(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comms[0], stream));
  EXPECT_NCCL(StreamLaunchHostFunc(
      stream, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &ran));
  EXPECT_EQ(ncclCommFinalize(comms[0]), ncclInProgress);
  EXPECT_EQ(ncclCommFinalize(comms[0]), ncclInvalidUsage) << "a second time";
  for (int i = 0; i < 20; ++i) {
    ncclResult_t state = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(comms[0], &state));
    EXPECT_EQ(state, ncclInProgress) << "finalized with an operation outstanding";
    Pause(1);
  }
  EXPECT_FALSE(ran);
  go = true;
  EXPECT_EQ(Settle(comms[0]), ncclSuccess);
  EXPECT_NCCL(StreamDestroy(stream));
  EXPECT_NCCL(ncclCommDestroy(comms[0]));
}

TEST(FinalizeTest, OfABlockingCommunicatorReturnsWhenItsOperationsAreDone) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  cudaStream_t stream;
  ASSERT_NCCL(StreamCreate(&stream));
  EXPECT_NCCL(StreamLaunchHostFunc(
      stream, [](void*) { Pause(60); }, nullptr));
  Array<int> in = {3}, out = {0};
  EXPECT_NCCL(ncclAllReduce(in.data(), out.data(), 1, ncclInt32, ncclSum, comm, stream));
  EXPECT_NCCL(ncclCommFinalize(comm));
  ncclComm_t child = nullptr;
  EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclInvalidUsage);
  int excluded = 0;
  EXPECT_EQ(ncclCommShrink(comm, &excluded, 1, &child, nullptr, NCCL_SHRINK_DEFAULT),
            ncclInvalidUsage);
  EXPECT_EQ(out[0], 3);
  EXPECT_NCCL(ncclCommDestroy(comm));
  EXPECT_NCCL(StreamDestroy(stream));
}

TEST(BlockingTest, TheEnvironmentHasTheLastWord) {
  for (const char* environment_says : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_COMM_BLOCKING", environment_says}});
    for (const int config_says : {0, 1, NCCL_CONFIG_UNDEF_INT}) {
      ncclUniqueId id;
      ASSERT_NCCL(ncclGetUniqueId(&id));
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = config_says;
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config),
                *environment_says == '0' ? ncclInProgress : ncclSuccess);
      EXPECT_EQ(Settle(comm), ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(comm));
    }
  }
}

TEST(DeviceTest, IsTheOneGivenToInitAllAndPassesToChildren) {
  std::array<ncclComm_t, 2> comms{}, children{};
  const std::array<int, 2> devices = OnGpus() ? std::array{1, 0} : std::array{5, 3};
  TUTTI_NEEDS_RANKS(2);
  ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, devices.data()));
  EXPECT_NCCL(ncclGroupStart());
  for (size_t r = 0; r < 2; ++r)
    EXPECT_NCCL(ncclCommSplit(comms[r], 0, -static_cast<int>(r), &children[r], nullptr));
  EXPECT_NCCL(ncclGroupEnd());
  for (size_t r = 0; r < 2; ++r) {
    for (ncclComm_t comm : {comms[r], children[r]}) {
      int device = -1;
      EXPECT_NCCL(ncclCommCuDevice(comm, &device));
      EXPECT_EQ(device, devices[r]);
      EXPECT_NCCL(ncclCommDestroy(comm));
    }
  }
}

}  // namespace
}  // namespace tutti::testing
