// Connections between ranks that break while all ranks live: all exclude the same rank, which is
// told, and the others go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <set>

#include "conformance/processes.h"
#include "faults/deaths.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

// This process's TCP connections, by descriptor.
std::set<int> Connections() {
  std::set<int> found;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_storage peer;
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
      found.insert(fd);
  }
  return found;
}

// Nobody dies, but two ranks cannot talk to one another any more: a link of the bootstrap breaks,
// or a connection for data. All three exclude the same one, which is told, and the others go on.
void CutAndGoOn(bool for_data) {
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", "1"}});
  constexpr int kRanks = 3;
  RunRankProcesses(kRanks, [for_data](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    const std::set<int> links = Connections();
    float value = 1;
    EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
    board.Meet(0, kRanks);
    if (rank == 1) {
      std::set<int> cut = links;
      if (for_data) {
        cut = Connections();
        for (const int link : links) cut.erase(link);
      }
      ASSERT_FALSE(cut.empty());
      EXPECT_EQ(shutdown(*cut.begin(), SHUT_RDWR), 0);
    }
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess)
      result = ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr);
    EXPECT_EQ(result, ncclRemoteError) << ncclGetLastError(comm);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("one of them has to go"));
    int lost[kRanks] = {};
    int count = 0;
    const int64_t until_us = NowUs() + kNotStrandedUs;
    while (count == 0 && NowUs() < until_us)
      ASSERT_NCCL(tuttiCommGetLostRanks(comm, lost, kRanks, &count));
    ASSERT_EQ(count, 1);
    board.result(rank) = static_cast<uint64_t>(lost[0]);
    board.Meet(1, kRanks);
    for (int other = 0; other < kRanks; ++other) EXPECT_EQ(board.result(other), board.result(rank));
    if (lost[0] != rank) {
      ncclComm_t fewer = nullptr;
      EXPECT_NCCL(ncclCommShrink(comm, lost, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
      value = 1;
      EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, fewer, nullptr));
      EXPECT_EQ(value, 2.0f);
      EXPECT_NCCL(ncclCommDestroy(fewer));
    } else {
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("excluded by the other ranks"));
    }
    board.Meet(2, kRanks);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
}

TEST(BrokenConnectionTest, OfTheBootstrapExcludesOneRankForAll) { CutAndGoOn(false); }
TEST(BrokenConnectionTest, ForDataExcludesOneRankForAll) { CutAndGoOn(true); }

}  // namespace
}  // namespace tutti::testing
