// Handles that other threads make and free while calls are about to use them, and pointers that
// never were handles.

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

#include "conformance/cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

constexpr int kRounds = 500;

// Asks everything that may be asked beside another call. Every answer must be one of a communicator
// that lives or of one that is gone.
void Ask(ncclComm_t comm) {
  int number = 0;
  ncclResult_t state = ncclSuccess;
  std::array<char, 256> text{};
  for (const ncclResult_t result :
       {ncclCommCount(comm, &number), ncclCommUserRank(comm, &number),
        ncclCommCuDevice(comm, &number), ncclCommGetAsyncError(comm, &state),
        tuttiCommDescribe(comm, text.data(), text.size(), nullptr)})
    EXPECT_TRUE(result == ncclSuccess || result == ncclInvalidArgument ||
                result == ncclInvalidUsage)
        << result;
  EXPECT_NE(ncclGetLastError(comm), nullptr);
}

// A thread that asks about whatever communicator it is shown.
class Watchdog {
 public:
  Watchdog() : thread_([this] { Run(); }) {}
  ~Watchdog() {
    stop_ = true;
    thread_.join();
  }
  void Show(ncclComm_t comm) {
    shown_.store(comm, std::memory_order_relaxed);  // gives the other thread no order to rely on
    const uint64_t before = asked_;
    while (asked_ < before + 2) std::this_thread::yield();
  }

 private:
  void Run() {
    while (!stop_) {
      Ask(shown_.load(std::memory_order_relaxed));
      ++asked_;
    }
  }
  std::atomic<bool> stop_ = false;
  std::atomic<uint64_t> asked_ = 0;
  std::atomic<ncclComm_t> shown_ = nullptr;
  std::thread thread_;
};

class HandlesTest : public ::testing::Test {
  const Environment quiet_{{{"NCCL_DEBUG", "NONE"}}};  // the refusals are many
};

TEST_F(HandlesTest, AnswerBesideDestroyAndAbort) {
  Watchdog watchdog;
  for (int round = 0; round < kRounds; ++round) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
    watchdog.Show(comm);
    EXPECT_NCCL(round % 2 == 0 ? ncclCommDestroy(comm) : ncclCommAbort(comm));
  }
}

// A program that reads the variable while the library fills it.
TEST_F(HandlesTest, AnswerBesideTheirMaking) {
  ncclComm_t comm = nullptr;
  std::atomic<bool> stop = false;
  std::thread watchdog([&] {
    while (!stop) Ask(std::atomic_ref<ncclComm_t>(comm).load(std::memory_order_relaxed));
  });
  for (int round = 0; round < kRounds; ++round) {
    ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
    EXPECT_NCCL(ncclCommDestroy(comm));
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ASSERT_NCCL(ncclGetUniqueId(&id));
    const ncclResult_t begun = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    EXPECT_TRUE(begun == ncclSuccess || begun == ncclInProgress) << begun;
    EXPECT_NCCL(ncclCommAbort(comm));
  }
  stop = true;
  watchdog.join();
}

// Both end it, once; who comes second finds it ended.
TEST_F(HandlesTest, EndOnceWhenTwoThreadsEndThem) {
  for (int round = 0; round < kRounds; ++round) {
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
    std::atomic<int> ready = 0;
    const auto end = [&](bool abort) {
      ++ready;
      while (ready < 2) std::this_thread::yield();
      const ncclResult_t result = abort ? ncclCommAbort(comm) : ncclCommDestroy(comm);
      EXPECT_TRUE(result == ncclSuccess || result == ncclInvalidArgument) << result;
    };
    std::thread other(end, round % 2 == 0);
    end(round % 3 == 0);
    other.join();
  }
}

TEST_F(HandlesTest, AreToldFromAnyPointer) {
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
  const auto address = reinterpret_cast<uintptr_t>(comm);
  std::array<uint64_t, 64> foreign{};
  for (const uintptr_t bad :
       {uintptr_t{1}, uintptr_t{8}, uintptr_t{0xdeadbeef}, uintptr_t{1} << 46, uintptr_t{1} << 63,
        ~uintptr_t{0}, address + 1, address + 8, address - 8, address + (uintptr_t{1} << 20),
        reinterpret_cast<uintptr_t>(foreign.data())}) {
    auto* const pointer = reinterpret_cast<ncclComm_t>(bad);
    int number = 0;
    float one = 1;
    EXPECT_EQ(ncclCommCount(pointer, &number), ncclInvalidArgument) << bad;
    EXPECT_EQ(ncclAllReduce(&one, &one, 1, ncclFloat32, ncclSum, pointer, nullptr),
              ncclInvalidArgument);
    EXPECT_EQ(ncclCommDestroy(pointer), ncclInvalidArgument);
    EXPECT_EQ(ncclCommAbort(pointer), ncclInvalidArgument);
    EXPECT_NE(ncclGetLastError(pointer), nullptr);
  }
  EXPECT_NCCL(ncclCommDestroy(comm));
}

// More handles at a time than the table's first part has, made and freed several times over.
TEST_F(HandlesTest, AreMadeAgainAfterManyHaveGone) {
  constexpr size_t kMany = 100;
  for (int round = 0; round < 6; ++round) {
    std::array<ncclComm_t, kMany> comms{};
    for (ncclComm_t& comm : comms) ASSERT_NCCL(ncclCommInitAll(&comm, 1, nullptr));
    for (ncclComm_t comm : comms) {
      int count = 0;
      EXPECT_NCCL(ncclCommCount(comm, &count));
      EXPECT_EQ(count, 1);
      EXPECT_NCCL(ncclCommDestroy(comm));
      EXPECT_EQ(ncclCommCount(comm, &count), ncclInvalidArgument);
    }
  }
}

// A thread that is cancelled in the middle of a call first ends the call, for which its peers wait.
TEST_F(HandlesTest, CallsEndBeforeTheirThreadIsCancelled) {
  struct Caller {
    ncclUniqueId id = {};
    ncclComm_t comm = nullptr;
    std::atomic<bool> begun = false;
    ncclResult_t result = ncclInternalError;
  } caller;
  ASSERT_NCCL(ncclGetUniqueId(&caller.id));
  pthread_t thread;
  const auto body = [](void* argument) -> void* {
    auto* const self = static_cast<Caller*>(argument);
    self->begun = true;
    self->result = ncclCommInitRank(&self->comm, 2, self->id, 0);
    while (true) pthread_testcancel();
  };
  ASSERT_EQ(pthread_create(&thread, nullptr, body, &caller), 0);
  while (!caller.begun) std::this_thread::yield();
  EXPECT_EQ(pthread_cancel(thread), 0);
  ncclComm_t comm = nullptr;
  EXPECT_NCCL(ncclCommInitRank(&comm, 2, caller.id, 1));
  void* outcome = nullptr;
  EXPECT_EQ(pthread_join(thread, &outcome), 0);
  EXPECT_EQ(outcome, PTHREAD_CANCELED);
  EXPECT_EQ(caller.result, ncclSuccess);
  EXPECT_NCCL(ncclCommDestroy(caller.comm));
  EXPECT_NCCL(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace tutti::testing
