// A rank that runs out of file descriptors, at whatever step of initialisation: all ranks are told
// so, and nobody is called lost who lives.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <string>

#include "conformance/processes.h"
#include "faults/deaths.h"
#include "faults/forbid.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Leaves this process `more` descriptors besides those that it has open, whatever it asks for.
void LeaveDescriptors(int more) {
  const auto is_open = [](int fd) { return fcntl(fd, F_GETFD) != -1; };
  int limit = 0;
  for (int left = more; left > 0 || is_open(limit); ++limit) left -= is_open(limit) ? 0 : 1;
  const auto numbers = static_cast<rlim_t>(limit);
  const rlimit lowered = {numbers, numbers};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lowered), 0);
}

// Returns the failure of initialisation and of a first operation, or nothing.
std::string JoinAndReduce(int rank, int num_ranks, const ncclUniqueId& id) {
  ncclComm_t comm = nullptr;
  ncclResult_t result = ncclCommInitRank(&comm, num_ranks, id, rank);
  if (result != ncclSuccess) return ncclGetLastError(nullptr);
  float value = 1;
  result = ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr);
  std::string told = result == ncclSuccess ? "" : ncclGetLastError(comm);
  EXPECT_NCCL(ncclCommAbort(comm));
  return told;
}

// A process that has used the library has a descriptor in reserve. Such a process can do without a
// table of descriptors of its own.
void UseTheReserve() {
  ncclUniqueId unused;
  ASSERT_NCCL(ncclGetUniqueId(&unused));
  ForbidSystemCall(__NR_unshare);
}

// Returns whether the job came to life.
bool RunWith(int more, int num_ranks, bool by_reserve) {
  constexpr int kShort = 1;  // the rank that has too few
  enum Mark { kReady = kFirstFreeMark, kWorked };
  RankProcesses processes(num_ranks, [&](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    // Unless by_reserve, the rank that is short of descriptors has not used the library yet.
    if (rank == kShort && by_reserve) UseTheReserve();
    if (rank == kShort) LeaveDescriptors(more);
    const std::string told = JoinAndReduce(rank, num_ranks, id);
    if (told.empty()) board.Add(kWorked, 1);
    // Nobody ends before all have heard.
    board.Meet(0, num_ranks);
    EXPECT_TRUE(board.Get(kWorked) == 0 || board.Get(kWorked) == num_ranks) << told;
    if (told.empty()) return;
    EXPECT_THAT(told, AllOf(HasSubstr("file descriptors"), HasSubstr("ulimit -n")));
    if (rank != kShort) {
      EXPECT_THAT(told, HasSubstr(fmt::format("rank {}", kShort)));
    }
  });
  processes.Wait(60);
  return processes.board().Get(kWorked) == num_ranks;
}

void TestLack(bool by_sockets, bool by_reserve) {
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", by_sockets ? "1" : "0"},
                                                      {"TUTTI_INIT_TIMEOUT_S", kInitTimeoutS}});
  int failed = 0;
  for (int more = 0;; ++more) {
    SCOPED_TRACE(fmt::format("{} descriptors", more));
    const int64_t start_us = NowUs();
    const bool worked = RunWith(more, 3, by_reserve);
    EXPECT_LT(NowUs() - start_us, kNotStrandedUs);
    if (::testing::Test::HasFailure() || worked) break;
    ++failed;
    ASSERT_LT(more, 100);
  }
  EXPECT_GT(failed, 3);
}

class DescriptorsTest : public ::testing::TestWithParam<bool> {};

TEST_P(DescriptorsTest, TheLackOfThemIsNamedOnAllRanks) {
  TestLack(/*by_sockets=*/GetParam(), /*by_reserve=*/false);
}

TEST(DescriptorsTestWithReserve, TheLackIsNamedWhereNoThreadMayHaveItsOwnTable) {
  TestLack(/*by_sockets=*/true, /*by_reserve=*/true);
}

INSTANTIATE_TEST_SUITE_P(Transports, DescriptorsTest, ::testing::Bool(), [](const auto& param) {
  return param.param ? "Sockets" : "SharedMemory";
});

}  // namespace
}  // namespace tutti::testing
