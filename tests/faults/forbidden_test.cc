// Ranks in a sandbox that forbids a system call: the next way between the ranks takes its place.

#include <errno.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <array>
#include <string>

#include "conformance/processes.h"
#include "conformance/suites.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

// Has the kernel refuse memfd_create with EPERM for the rest of this process, as containers do.
void ForbidMemoryFiles() {
  std::array<sock_filter, 4> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), 0);
  ASSERT_EQ(memfd_create("forbidden", 0), -1);
}

std::vector<Case> FewCases(int num_ranks) { return EveryCount(num_ranks, {1, 70001}); }

TEST(ForbiddenTest, WithoutMemoryFilesRanksOfAHostUseTheNetwork) {
  TUTTI_NEEDS_RANKS(3);
  RunOnHosts({"a", "a", "a"}, FewCases(3), 120, [](int) { ForbidMemoryFiles(); });
}

TEST(ForbiddenTest, ASingleRankWithoutMemoryFilesUsesTheNetwork) {
  TUTTI_NEEDS_RANKS(3);
  RunOnHosts({"a", "a", "a"}, FewCases(3), 120, [](int rank) {
    if (rank == 1) ForbidMemoryFiles();
  });
}

TEST(ForbiddenTest, StrictTransportNamesWhatIsForbidden) {
  TUTTI_NEEDS_RANKS(2);
  const Environment environment(Environment::Settings{{"TUTTI_STRICT_TRANSPORT", "1"}});
  RunRankProcesses(2, [](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    if (rank == 1) ForbidMemoryFiles();
    ncclComm_t comm = nullptr;
    EXPECT_NE(ncclCommInitRank(&comm, 2, id, rank), ncclSuccess);
    EXPECT_THAT(std::string(ncclGetLastError(nullptr)), ::testing::HasSubstr("memfd_create"));
  });
}

}  // namespace
}  // namespace tutti::testing
