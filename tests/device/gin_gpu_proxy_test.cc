// The proxies of device-initiated networking of GPUs, where something goes wrong around them: a
// rank that cannot make its own, one that ends its own too early, one that refuses what is put
// there.

#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>

#include "gin_cases.h"
#include "gin_world.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace {

thread_local bool no_more_sockets = false;

}  // namespace

// Takes the place of the C library's in this program: fails on threads that say so.
extern "C" __attribute__((visibility("default"))) int socket(int domain, int type,
                                                             int protocol) noexcept {
  if (no_more_sockets && domain != AF_UNIX) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GinGpuProxyTest : public ::testing::Test {
 private:
  const WayInEnvironment way_{Way::kNetwork};
};

// Has the stand-in for the driver refuse this thread's next event.
void FailNextEvent() {
  static auto* const fail = reinterpret_cast<void (*)(int)>(
      dlsym(dlopen("libcuda.so.1", RTLD_NOW), "tuttiFakeFailRecord"));
  fail(1);
}

// What ranks wait for outside of the library: calls of it would end with their communicator.
void Raise(std::atomic<bool>& flag) {
  flag = true;
  flag.notify_all();
}
void MeetOthers(std::atomic<int>& came, int num_ranks) {
  ++came;
  came.notify_all();
  for (int now = came; now < num_ranks; now = came) came.wait(now);
}

ncclResult_t AsyncError(ncclComm_t comm) {
  ncclResult_t error = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
  return error;
}

int NumLost(ncclComm_t comm) {
  int lost = 0;
  int ranks[8];
  EXPECT_EQ(tuttiCommGetLostRanks(comm, ranks, 8, &lost), ncclSuccess);
  return lost;
}

void ExpectRefused(ncclComm_t comm, int failing, ncclResult_t expected) {
  const ncclDevCommRequirements_t asked = AskGin(1);
  ncclDevComm_t refused = {};
  EXPECT_EQ(ncclDevCommCreate(comm, &asked, &refused), expected);
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr(fmt::format("rank {} (", failing)));
  EXPECT_EQ(AsyncError(comm), ncclSuccess);
}

// The others wait for what that rank does not do: to be connected to, or to be told where to.
TEST_F(GinGpuProxyTest, OneRankThatCannotConnectFailsAllAndTheyGoOn) {
  constexpr int kRanks = 3;
  for (const int failing : {0, 1}) {
    SCOPED_TRACE(failing);
    RunRanks(kRanks, [&](int rank, ncclComm_t comm) {
      for (int i = 0; i < 2; ++i) {
        no_more_sockets = rank == failing;
        ExpectRefused(comm, failing, ncclSystemError);
        no_more_sockets = false;
      }
      GinAllToAll(comm, rank, kRanks, 100'000, 2);
    });
  }
}

// The ranks that could make theirs give them up, and nothing of them runs on, also when another
// rank leaves later.
TEST_F(GinGpuProxyTest, OneRankThatCannotMakeItsProxyLeavesNoThreads) {
  constexpr int kRanks = 3;
  std::atomic<int> refused = 0, looked = 0;
  std::atomic<bool> one_has_left = false;
  const auto end_in_turn = [&](int rank, ncclComm_t comm) {
    {
      const GinDevComm kept(comm, AskGin(1));
      if (rank == 1) FailNextEvent();
      ExpectRefused(comm, 1, ncclUnhandledCudaError);
      MeetOthers(refused, kRanks);
      EXPECT_EQ(ThreadsCalled("tutti-gin").size(), size_t{kRanks});
      MeetOthers(looked, kRanks);
      if (rank == 0) one_has_left.wait(false);
    }
    EXPECT_EQ(AsyncError(comm), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
    if (rank == 2) Raise(one_has_left);
  };
  RunRanks(kRanks, end_in_turn, [](ncclComm_t) { return ncclSuccess; });
}

constexpr size_t kLongBytes = 5 << 20;  // more than what goes before the receiver has taken any

struct Operation {
  const char* name;
  void (*post)(const ncclGin& gin, ncclTeam world, ncclWindow_t window);
  const char* blamed;  // null: nothing of it needs the other rank
};
const Operation kOperations[] = {
    {"a short get",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.get(world, 1, window, 0, window, kLongBytes, 64);
     },
     "a get"},
    {"a long get",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.get(world, 1, window, 0, window, kLongBytes, kLongBytes);
     },
     "a get"},
    {"a long put",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, kLongBytes, window, 0, kLongBytes);
     },
     "a put"},
    {"a short put",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, kLongBytes, window, 0, 64, ncclGin_StrongSignalInc{0});
     },
     nullptr},
};

void PostAndFlush(ncclDevComm comm, ncclWindow_t window, Operation operation) {
  const ncclGin gin(comm, 0);
  operation.post(gin, ncclTeamWorld(comm), window);
  gin.flush(ncclCoopThread());
}

// Whoever asks what only the other rank can give learns that it never will.
void ReachWhatHasEnded(const Operation& operation, bool communicator_too) {
  SCOPED_TRACE(operation.name);
  std::atomic<bool> ended = false, asked = false;
  const auto body = [&](int rank, ncclComm_t comm) {
    const auto end_first = [&] {
      if (communicator_too) {
        EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
      }
      Raise(ended);
      asked.wait(false);
    };
    {
      GinWindow<uint8_t> window(comm, 2 * kLongBytes);
      const GinDevComm devcomm(comm, AskGin(1));
      if (rank == 0) {
        ended.wait(false);
        EXPECT_EQ(tutti::Launch(PostAndFlush, {}, devcomm.get(), window.get(), operation),
                  ncclSuccess);
        Raise(asked);
        if (operation.blamed == nullptr) {
          EXPECT_EQ(AsyncError(comm), ncclSuccess) << ncclGetLastError(comm);
        } else {
          EXPECT_EQ(AsyncError(comm), ncclInvalidUsage);
          EXPECT_THAT(ncclGetLastError(comm),
                      AllOf(HasSubstr(operation.blamed), HasSubstr("rank 1 ("),
                            HasSubstr("has ended its ")));
        }
      }
    }
    if (rank == 1) end_first();
    if (rank == 0 || !communicator_too) {
      EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    }
  };
  RunRanks(2, body, [](ncclComm_t) { return ncclSuccess; });
}

TEST_F(GinGpuProxyTest, WhatNeedsADeviceCommunicatorThatHasEndedFails) {
  for (const Operation& operation : kOperations) ReachWhatHasEnded(operation, false);
}

TEST_F(GinGpuProxyTest, WhatNeedsACommunicatorThatHasEndedFails) {
  for (const Operation& operation : kOperations) ReachWhatHasEnded(operation, true);
}

const Operation kToBeRefused[] = {
    {"a put",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.put(world, 1, window, 0, window, 0, 64);
     },
     "a put of rank 0 ("},
    {"a value",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.putValue(world, 1, window, 8, uint64_t{1});
     },
     "a put of rank 0 ("},
    {"a get",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.get(world, 1, window, 0, window, 64, 64);
     },
     "a get of rank 0 ("},
    {"a signal",
     [](const ncclGin& gin, ncclTeam world, ncclWindow_t window) {
       gin.signal(world, 1, ncclGin_StrongVASignalInc{window, 8});
     },
     "a signal of rank 0 ("},
};

void WaitForSignal(ncclDevComm comm) { ncclGin(comm, 0).waitSignal(ncclCoopThread(), 0, 1); }
void PostAndWait(ncclDevComm comm, ncclWindow_t window, Operation operation) {
  operation.post(ncclGin(comm, 0), ncclTeamWorld(comm), window);
  WaitForSignal(comm);
}

// The receiver has given the window back. That is no broken connection, and no rank is excluded.
TEST_F(GinGpuProxyTest, WhatIsRefusedIsNamed) {
  for (const Operation& operation : kToBeRefused) {
    SCOPED_TRACE(operation.name);
    std::atomic<bool> gone = false;
    RunRanks(
        2,
        [&](int rank, ncclComm_t comm) {
          void* memory = nullptr;
          ncclWindow_t window = nullptr;
          EXPECT_EQ(ncclMemAlloc(&memory, 4096), ncclSuccess);
          EXPECT_EQ(ncclCommWindowRegister(comm, memory, 4096, &window, NCCL_WIN_STRICT_ORDERING),
                    ncclSuccess);
          {
            const GinDevComm devcomm(comm, AskGin(1));
            if (rank == 1) {
              EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclSuccess);
              Raise(gone);
              EXPECT_EQ(tutti::Launch(WaitForSignal, {}, devcomm.get()), ncclSuccess);
            } else {
              gone.wait(false);
              EXPECT_EQ(tutti::Launch(PostAndWait, {}, devcomm.get(), window, operation),
                        ncclSuccess);
            }
            EXPECT_EQ(AsyncError(comm), ncclInvalidArgument);
            EXPECT_THAT(ncclGetLastError(comm),
                        AllOf(HasSubstr(operation.blamed), HasSubstr("at rank 1: "),
                              HasSubstr("no window of this rank")));
            EXPECT_EQ(NumLost(comm), 0);
          }
          if (rank == 0) {
            EXPECT_EQ(ncclCommWindowDeregister(comm, window), ncclSuccess);
          }
          EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
        },
        ncclCommAbort);
  }
}

}  // namespace
}  // namespace tutti::testing
