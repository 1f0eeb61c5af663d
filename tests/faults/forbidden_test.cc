// Ranks in a sandbox that forbids a system call: the next way between the ranks takes its place.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <string>

#include "conformance/processes.h"
#include "conformance/suites.h"
#include "faults/forbid.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

// Has the kernel refuse memfd_create with EPERM for the rest of this process, as containers do.
void ForbidMemoryFiles() {
  ForbidSystemCall(__NR_memfd_create);
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

TEST(ForbiddenTest, StrictTransportLetsASingleRankOfAHostUseTheNetwork) {
  TUTTI_NEEDS_RANKS(2);
  const Environment environment(Environment::Settings{{"TUTTI_STRICT_TRANSPORT", "1"}});
  RunOnHosts({"a", "b"}, FewCases(2), 120, [](int) { ForbidMemoryFiles(); });
}

}  // namespace
}  // namespace tutti::testing
