// Groups whose operations stand on several streams, on shared streams, or behind a stream that does
// not move; and what a failure that harms nothing leaves behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "conformance/cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

template <size_t kCount>
class Streams {
 public:
  Streams() {
    for (cudaStream_t& stream : streams_) EXPECT_NCCL(StreamCreate(&stream));
  }
  ~Streams() {
    for (cudaStream_t stream : streams_) EXPECT_NCCL(StreamDestroy(stream));
  }
  cudaStream_t operator[](size_t i) const { return streams_[i]; }
  void Synchronize() const {
    for (cudaStream_t stream : streams_) EXPECT_NCCL(StreamSynchronize(stream));
  }

 private:
  std::array<cudaStream_t, kCount> streams_{};
};

// `body` must outlive what is enqueued.
void Enqueue(cudaStream_t stream, const std::function<void()>& body) {
  EXPECT_NCCL(StreamLaunchHostFunc(
      stream, [](void* f) { (*static_cast<const std::function<void()>*>(f))(); },
      const_cast<std::function<void()>*>(&body)));
}

void Pause(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

void Add(int* value, ncclComm_t comm, cudaStream_t stream) {
  EXPECT_NCCL(ncclAllReduce(value, value, 1, ncclInt32, ncclSum, comm, stream));
}

TEST(StreamGroupTest, WaitsForWhatEachOfItsStreamsDidBefore) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  // The first operation of the group stands on a host stream, or on the calling thread.
  for (const bool first_on_caller : {false, true}) {
    ThreadWorld world(kRanks);
    ASSERT_TRUE(world.ok());
    RunRanks(kRanks, [&](int rank) {
      const Streams<2> streams;
      Array<int> first = {rank + 1}, second = {-1000};
      const std::function<void()> produce = [&] {
        Pause(100);
        second[0] = 10 * (rank + 1);
      };
      Enqueue(streams[1], produce);
      EXPECT_NCCL(ncclGroupStart());
      Add(first.data(), world.comm(rank), first_on_caller ? nullptr : streams[0]);
      Add(second.data(), world.comm(rank), streams[1]);
      EXPECT_NCCL(ncclGroupEnd());
      if (!first_on_caller || OnGpus()) streams.Synchronize();
      EXPECT_NCCL(Finish(world.comm(rank)));
      EXPECT_EQ(first[0], 3);
      EXPECT_EQ(second[0], 30);
    });
  }
}

TEST(StreamGroupTest, HoldsUpWhatComesLaterOnEachOfItsStreams) {
  constexpr int kRanks = 2;
  TUTTI_NEEDS_RANKS(kRanks);
  ThreadWorld world(kRanks);
  ASSERT_TRUE(world.ok());
  RunRanks(kRanks, [&](int rank) {
    const Streams<3> streams;
    Array<int> values = {rank + 1, 10 * (rank + 1)};
    std::array<int, 3> seen{};
    const std::function<void()> delay = [] { Pause(60); };
    std::array<std::function<void()>, 3> look;
    Enqueue(streams[static_cast<size_t>(rank)], delay);
    EXPECT_NCCL(ncclGroupStart());
    Add(&values[0], world.comm(rank), streams[0]);
    Add(&values[1], world.comm(rank), streams[1]);
    Add(&values[1], world.comm(rank), streams[2]);
    EXPECT_NCCL(ncclGroupEnd());
    for (size_t i = 0; i < 3; ++i) {
      look[i] = [&, i] { seen[i] = values[0] + values[1]; };
      Enqueue(streams[i], look[i]);
    }
    streams.Synchronize();
    EXPECT_EQ(seen, (std::array<int, 3>{63, 63, 63}));
  });
}

// Ranks whose operations wait for one another must not stand in one another's way.
TEST(SharedStreamTest, CarriesSeveralRanksOfOneGroup) {
  TUTTI_FOR_HOSTS("a stream is one GPU's");
  // The stream that each rank's operations stand on.
  const std::vector<std::vector<std::vector<size_t>>> layouts = {
      {{0}, {0}, {0}},        // all on one
      {{0}, {0, 1}, {1}},     // a chain
      {{0, 1}, {2}, {1, 2}},  // joined by the last
      {{0, 1}, {1, 0}, {2}}};
  for (const auto& layout : layouts) {
    constexpr int kRanks = 3;
    const ThreadWorld world(kRanks, {{"TUTTI_TIMEOUT_S", "10"}});
    ASSERT_TRUE(world.ok());
    const Streams<3> streams;
    std::array<std::array<int, 2>, kRanks> values{};
    for (int round = 0; round < 20; ++round) {
      EXPECT_NCCL(ncclGroupStart());
      for (size_t r = 0; r < kRanks; ++r) {
        values[r] = {static_cast<int>(r) + 1, round};
        for (size_t i = 0; i < 2; ++i)
          Add(&values[r][i], world.comm(static_cast<int>(r)),
              streams[layout[r][i % layout[r].size()]]);
      }
      EXPECT_NCCL(ncclGroupEnd());
      streams.Synchronize();
      for (const auto& value : values) ASSERT_EQ(value, (std::array<int, 2>{6, 3 * round}));
    }
  }
}

TEST(SharedStreamTest, CarriesRanksBesideTheCallingThread) {
  TUTTI_FOR_HOSTS("a stream is one GPU's");
  constexpr int kRanks = 3;
  const ThreadWorld world(kRanks, {{"TUTTI_TIMEOUT_S", "10"}});
  ASSERT_TRUE(world.ok());
  const Streams<1> streams;
  std::array<int, kRanks> values = {1, 2, 3};
  EXPECT_NCCL(ncclGroupStart());
  Add(&values[0], world.comm(0), streams[0]);
  Add(&values[1], world.comm(1), nullptr);
  Add(&values[2], world.comm(2), streams[0]);
  Add(&values[0], world.comm(0), nullptr);
  Add(&values[1], world.comm(1), nullptr);
  Add(&values[2], world.comm(2), streams[0]);
  EXPECT_NCCL(ncclGroupEnd());
  streams.Synchronize();
  EXPECT_EQ(values, (std::array<int, kRanks>{18, 18, 18}));
}

// Two threads launch groups over the same two streams, named in opposite orders.
TEST(SharedStreamTest, CrossedGroupsOfTwoThreadsMakeNoCircle) {
  std::array<ncclComm_t, 2> alone{};
  const Environment environment(Environment::Settings{{"TUTTI_TIMEOUT_S", "10"}});
  for (ncclComm_t& comm : alone) ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  const Streams<2> streams;
  // Both threads use the one GPU that both communicators are on.
  RunRankThreads(2, [&](int thread) {
    UseDevice(0);
    const auto self = static_cast<size_t>(thread);
    Array<int> values = {1, 2};
    for (int round = 0; round < 300; ++round) {
      EXPECT_NCCL(ncclGroupStart());
      Add(&values[0], alone[self], streams[self]);
      Add(&values[1], alone[self], streams[1 - self]);
      EXPECT_NCCL(ncclGroupEnd());
    }
    streams.Synchronize();
    EXPECT_EQ(values[0] + values[1], 3);
  });
  for (ncclComm_t comm : alone) EXPECT_NCCL(ncclCommDestroy(comm));
}

// An operation on a stream that does not move holds up those issued after it, but not for ever.
TEST(TurnTest, ThatNeverComesIsATimeout) {
  TUTTI_FOR_HOSTS("operations wait on their streams, as CUDA's do");
  const Environment environment(Environment::Settings{{"TUTTI_TIMEOUT_S", "0.5"}});
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  std::atomic<bool> go = false;
  const std::function<void()> block = [&] {
    while (!go) Pause(1);
  };
  int on_stream = 1, here = 2, again = 3;
  const Streams<1> streams;
  Enqueue(streams[0], block);
  Add(&on_stream, comm, streams[0]);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ncclAllReduce(&here, &here, 1, ncclInt32, ncclSum, comm, nullptr), ncclTimeout);
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr("stream"));
  EXPECT_EQ(ncclCommDestroy(comm), ncclTimeout) << "destroyed under an operation";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  ncclResult_t state = ncclSuccess;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
  EXPECT_EQ(state, ncclTimeout);
  go = true;
  // The turn goes on past the operation that was given up.
  EXPECT_NE(tuttiStreamSynchronize(streams[0]), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(&again, &again, 1, ncclInt32, ncclSum, comm, nullptr), ncclTimeout);
  EXPECT_NCCL(ncclCommDestroy(comm));
}

// Waits until `flag` is up; false when that takes longer than a stuck stream may be waited for.
bool AwaitFlag(const std::atomic<bool>& flag) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!flag && std::chrono::steady_clock::now() < deadline) Pause(1);
  return flag;
}

// A group over two streams of which one does not move: the other one waits for it, but no longer
// than the communicator lives. `stuck`: which one of the two does not move. The group's operations
// run on the first.
void AbortAGroup(size_t stuck) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  std::atomic<bool> go = false, moved = false;
  const std::function<void()> block = [&] {
    while (!go) Pause(1);
  };
  const std::function<void()> move = [&] { moved = true; };
  int first = 1, second = 2;
  const Streams<2> streams;
  Enqueue(streams[stuck], block);
  EXPECT_NCCL(ncclGroupStart());
  Add(&first, comm, streams[0]);
  Add(&second, comm, streams[1]);
  EXPECT_NCCL(ncclGroupEnd());
  Enqueue(streams[1 - stuck], move);
  EXPECT_FALSE(moved) << "the stream did not wait for the group";
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_TRUE(AwaitFlag(moved)) << "the stream waits for a group that never comes";
  go = true;
}

TEST(StreamGroupTest, AnAbortEndsTheWaitForAStreamThatDoesNotMove) {
  TUTTI_FOR_HOSTS("operations wait on their streams, as CUDA's do");
  AbortAGroup(/*stuck=*/1);
}

TEST(StreamGroupTest, AnAbortEndsTheWaitForAGroupThatCannotBegin) {
  TUTTI_FOR_HOSTS("operations wait on their streams, as CUDA's do");
  AbortAGroup(/*stuck=*/0);
}

TEST(StreamGroupTest, AStreamThatDoesNotMoveIsATimeout) {
  TUTTI_FOR_HOSTS("operations wait on their streams, as CUDA's do");
  const Environment environment(Environment::Settings{{"TUTTI_TIMEOUT_S", "0.5"}});
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  std::atomic<bool> go = false;
  const std::function<void()> block = [&] {
    while (!go) Pause(1);
  };
  int first = 1, second = 2;
  {
    const Streams<2> streams;
    Enqueue(streams[1], block);
    EXPECT_NCCL(ncclGroupStart());
    Add(&first, comm, streams[0]);
    Add(&second, comm, streams[1]);
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_EQ(tuttiStreamSynchronize(streams[0]), ncclTimeout);
    go = true;
    EXPECT_NE(tuttiStreamSynchronize(streams[1]), ncclSuccess);
  }
  EXPECT_NCCL(ncclCommAbort(comm));
}

// Many threads at the end of a communicator's last operation: the last one out must not find it
// gone. (Freed memory shows under a sanitizer.)
TEST(TurnTest, DestroyingRightBehindAnOperationOfAnotherThread) {
  for (int round = 0; round < 200; ++round) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
    Array<int> values = {1, 2};
    const Streams<2> streams;
    for (size_t i = 0; i < 2; ++i) Add(&values[i], comm, streams[i]);
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_EQ(values, (Array<int>{1, 2}));
  }
}

// A send to itself without its receive is refused when the group runs, and nothing has happened.
TEST(HarmlessFailureTest, LeavesTheCommunicatorInOrder) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  Array<int> value = {7};
  EXPECT_EQ(ncclSend(value.data(), 1, ncclInt32, 0, comm, nullptr), ncclInvalidUsage);
  EXPECT_EQ(Settle(comm), ncclSuccess);
  const Streams<1> streams;
  // On GPUs the call itself tells.
  EXPECT_EQ(ncclSend(value.data(), 1, ncclInt32, 0, comm, streams[0]),
            OnGpus() ? ncclInvalidUsage : ncclSuccess);
  EXPECT_EQ(StreamSynchronize(streams[0]), OnGpus() ? ncclSuccess : ncclInvalidUsage)
      << "the stream has not told";
  EXPECT_EQ(Settle(comm), ncclSuccess);
  Add(value.data(), comm, nullptr);
  EXPECT_NCCL(Finish(comm));
  EXPECT_EQ(value[0], 7);
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(HarmlessFailureTest, OnAWorkerShowsUntilTheNextOperation) {
  TUTTI_FOR_HOSTS("there the call itself tells, since a launch waits for nobody");
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInProgress);
  ASSERT_EQ(Settle(comm), ncclSuccess);
  Array<int> value = {7};
  EXPECT_EQ(ncclSend(value.data(), 1, ncclInt32, 0, comm, nullptr), ncclInProgress);
  EXPECT_EQ(Settle(comm), ncclInvalidUsage);
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr("itself"));
  EXPECT_EQ(ncclAllReduce(value.data(), value.data(), 1, ncclInt32, ncclSum, comm, nullptr),
            ncclInProgress);
  EXPECT_EQ(Settle(comm), ncclSuccess);
  EXPECT_NCCL(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace tutti::testing
