// Device-initiated networking of ranks that are processes, on one host and on several.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>

#include "conformance/processes.h"
#include "device/gin_cases.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

struct GinLayout {
  const char* name;
  Hosts hosts;
};

class GinLayoutTest : public ::testing::TestWithParam<GinLayout> {};

INSTANTIATE_TEST_SUITE_P(Of, GinLayoutTest,
                         ::testing::Values(GinLayout{"ThreeOnOneHost", {"", "", ""}},
                                           GinLayout{"TwoHostsOfTwo", {"a", "a", "b", "b"}},
                                           GinLayout{"TwoHostsInTurns", {"a", "b", "a", "b"}}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(GinLayoutTest, KernelsPutToAllRanks) {
  // A kernel of a host stands in for one of a GPU, where GPUs are the stand-in's (tests/fakegpu).
  if (OnGpus()) finish_streams = [](ncclComm_t comm) { return Finish(comm); };
  const Hosts& hosts = GetParam().hosts;
  const int n = static_cast<int>(hosts.size());
  RunRankProcesses(n, [&](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    GinEachCase(comm, rank, n);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// Puts to a rank that takes nothing until the queue is full and what is under way is stuck.
void PutForEver(ncclDevComm comm, ncclWindow_t window, int to) {
  const ncclGin gin(comm, 0);
  for (int i = 0; i < 1000; ++i)
    gin.put(ncclTeamWorld(comm), to, window, 0, window, 0, size_t{1} << 20,
            ncclGin_StrongSignalInc{1});
  gin.waitSignal(ncclCoopThread(), 0, 1);  // It never comes.
}

TEST_P(GinLayoutTest, KernelsEndWithTheDeathOfARank) {
  const Hosts& hosts = GetParam().hosts;
  const int n = static_cast<int>(hosts.size());
  RankProcesses processes(n, [&](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    {
      GinWindow<uint8_t> window(comm, size_t{1} << 20);
      const GinDevComm devcomm(comm, AskGin(2));
      board.Meet(kFirstFreeMark, n);
      if (rank == n - 1) {
        kill(getpid(), SIGKILL);
        while (true) pause();
      }
      EXPECT_EQ(tutti::Launch(PutForEver, {}, devcomm.get(), window.get(), n - 1), ncclSuccess);
      ncclResult_t error = ncclSuccess;
      EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
      EXPECT_EQ(error, ncclRemoteError);
      EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr("rank " + std::to_string(n - 1)));
    }
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  processes.ExpectDeath(n - 1);
  processes.Wait();
}

}  // namespace
}  // namespace tutti::testing
