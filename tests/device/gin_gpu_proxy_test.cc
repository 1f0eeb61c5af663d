// The proxies of device-initiated networking of GPUs, where something goes wrong around them: a
// rank that cannot make its own.

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

}  // namespace
}  // namespace tutti::testing
