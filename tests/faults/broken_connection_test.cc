// Connections between ranks that break while all ranks live. Connections are made again where that
// is possible, and no rank notices. Otherwise all ranks exclude the same rank, which is told, and
// the others go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <functional>
#include <set>

#include "conformance/processes.h"
#include "device/gin_cases.h"
#include "faults/deaths.h"
#include "sys/tcp.h"
#include "testing/connections.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

// Says what breaks, and what the ranks do meanwhile.
enum class Cut {
  kData,      // a connection for data, in AllReduce
  kAllData,   // all of the middle rank's connections for data, in AllReduce
  kOneSided,  // a connection of device-initiated networking, while kernels do nothing but wait
};

void WaitForNobody(ncclDevComm comm) { ncclGin(comm, 0).waitSignal(ncclCoopThread(), 0, 1); }

// Uses connections until that fails, and returns how. `ready` is called when they are there.
ncclResult_t ReduceUntilItFails(ncclComm_t comm, const std::function<void()>& ready) {
  float value = 1;
  EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
  ready();
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess)
    result = ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr);
  return result;
}
ncclResult_t WaitInKernel(ncclComm_t comm, const std::function<void()>& ready) {
  const GinDevComm devcomm(comm, AskGin(1));
  ready();
  EXPECT_NCCL(tutti::Launch(WaitForNobody, {}, devcomm.get()));
  ncclResult_t result = ncclSuccess;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
  return result;
}

// Nobody dies, but two ranks cannot talk to one another any more. All three exclude the same one,
// which is told, and the others go on.
void CutAndGoOn(Cut what) {
  // What is broken stays broken: the connection is not made again.
  const Environment environment(
      Environment::Settings{{"NCCL_SHM_DISABLE", "1"}, {"TUTTI_RESUME_TIMEOUT_S", "0"}});
  constexpr int kRanks = 3;
  RunRankProcesses(kRanks, [what](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    const std::set<int> links = Connections();
    const auto cut_one = [&] {
      board.Meet(0, kRanks);
      if (rank != 1) return;
      std::set<int> cut = Connections();
      for (const int link : links) cut.erase(link);
      ASSERT_FALSE(cut.empty());
      if (what != Cut::kAllData) cut = {*cut.begin()};
      for (const int connection : cut) EXPECT_EQ(shutdown(connection, SHUT_RDWR), 0);
    };
    const ncclResult_t result =
        what == Cut::kOneSided ? WaitInKernel(comm, cut_one) : ReduceUntilItFails(comm, cut_one);
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
      float value = 1;
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

// A rank resets all its connections, those of the bootstrap among them, again and again. A split
// needs the bootstrap's connections at once.
void ResetAndGoOn(bool by_shared_memory) {
  const Environment environment(
      Environment::Settings{{"NCCL_SHM_DISABLE", by_shared_memory ? "0" : "1"}});
  constexpr int kRanks = 4;
  constexpr int kRounds = 5;
  RunRankProcesses(kRanks, [](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    for (int round = 0; round < kRounds; ++round) {
      const std::set<int> connections = Connections();
      ASSERT_FALSE(connections.empty());
      for (const int connection : connections)
        if (rank == 1) ResetConnection(connection);
      ncclComm_t child = nullptr;
      ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &child, nullptr)) << ncclGetLastError(comm);
      for (ncclComm_t one : {comm, child}) {
        float value = 1;
        ASSERT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, one, nullptr))
            << ncclGetLastError(one);
        EXPECT_EQ(value, static_cast<float>(kRanks));
      }
      EXPECT_NCCL(ncclCommDestroy(child));
    }
    int lost[kRanks] = {};
    int count = 0;
    EXPECT_NCCL(tuttiCommGetLostRanks(comm, lost, kRanks, &count));
    EXPECT_EQ(count, 0);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(BrokenConnectionTest, OfTheBootstrapIsMadeAgainBesideSharedMemory) { ResetAndGoOn(true); }
TEST(BrokenConnectionTest, OfTheBootstrapIsMadeAgainBesideSockets) { ResetAndGoOn(false); }

TEST(BrokenConnectionTest, ForDataExcludesOneRankForAll) { CutAndGoOn(Cut::kData); }
// Each of its neighbours sees another pair of ranks that cannot talk.
TEST(BrokenConnectionTest, OfAllDataOfOneRankExcludesOneRankForAll) { CutAndGoOn(Cut::kAllData); }
TEST(BrokenConnectionTest, UnderKernelsThatWaitExcludesOneRankForAll) {
  CutAndGoOn(Cut::kOneSided);
}

}  // namespace
}  // namespace tutti::testing
