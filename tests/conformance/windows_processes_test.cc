// Windows of ranks that are processes, on one host and on several.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "conformance/processes.h"
#include "conformance/windows.h"
#include "nccl_device.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

struct Layout {
  const char* name;
  Hosts hosts;
  int team_size;
};

class WindowLayoutTest : public ::testing::TestWithParam<Layout> {};

TEST_P(WindowLayoutTest, TeamsReachTheirPartsAndNoOthers) {
  TUTTI_FOR_HOSTS("kernels of GPUs have no flat space yet");
  const auto& [name, hosts, team_size] = GetParam();
  const int n = static_cast<int>(hosts.size());
  RunRankProcesses(n, [&, size = team_size](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    const ncclTeam_t lsa = ncclTeamLsa(comm), rail = ncclTeamRail(comm);
    EXPECT_EQ(lsa.nRanks, size);
    EXPECT_EQ(lsa.rank, rank % size);
    EXPECT_EQ(rail.nRanks, n / size);
    EXPECT_EQ(rail.rank, rank / size);
    EXPECT_EQ(rail.stride, size);
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    EXPECT_NCCL(ncclCommQueryProperties(comm, &properties));
    EXPECT_EQ(properties.nLsaTeams, n / size);
    {
      TestMemory memory(3 << 20);
      TestWindow ours(comm, 3 << 20, memory.data()), theirs(comm, 5000);
      for (int peer = 0; peer < n; ++peer)
        EXPECT_EQ(ours.At(peer, 0) != nullptr, peer / size == rank / size) << peer;
      void* pointer = nullptr;
      EXPECT_NCCL(ncclGetLsaDevicePointer(ours.get(), 0, 0, &pointer));
      EXPECT_EQ(pointer, ours.At(rank - rank % size, 0));
      for (int round = 0; round < 3; ++round) {
        StampAll(ours, rank, n, (2 << 20) + static_cast<size_t>(round) * 512);
        StampAll(theirs, rank, n, static_cast<size_t>(round) * 512);
        EXPECT_NCCL(tuttiBarrier(comm, nullptr));
        ExpectStamps(ours, rank, n, (2 << 20) + static_cast<size_t>(round) * 512);
        ExpectStamps(theirs, rank, n, static_cast<size_t>(round) * 512);
      }
      EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Of, WindowLayoutTest,
    ::testing::Values(Layout{"OneRank", {""}, 1}, Layout{"FourOnOneHost", {"", "", "", ""}, 4},
                      Layout{"TwoHostsOfTwo", {"a", "a", "b", "b"}, 2},
                      Layout{"HostsOfFourAndTwo", {"a", "a", "a", "a", "b", "b"}, 2},
                      Layout{"TwoHostsInTurns", {"a", "b", "a", "b"}, 1}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(WindowLayoutTest, OneSidedCallsReachAllRanks) {
  const Hosts& hosts = GetParam().hosts;
  const int n = static_cast<int>(hosts.size());
  RunRankProcesses(n, [&](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    EXPECT_NCCL(ncclCommQueryProperties(comm, &properties));
    EXPECT_TRUE(properties.hostRmaSupport);
    PutToAllAndCheck(comm, rank, n, 24);
    if (OnGpus() && properties.nLsaTeams > 1) {
      TestWindow window(comm, 64);
      TestMemory loose(64);
      EXPECT_EQ(ncclPutSignal(loose.data(), 8, ncclInt8, (rank + n / 2) % n, window.get(), 0, 0, 0,
                              0, comm, nullptr),
                ncclInvalidArgument);
      EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr("has to lie in a window"));
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// A rank computes for a while and takes no part in what others put to it meanwhile; and one that
// leaves right after its put does not take it along.
TEST_P(WindowLayoutTest, PutsNeedNothingOfTheirTarget) {
  const Hosts& hosts = GetParam().hosts;
  const int n = static_cast<int>(hosts.size());
  constexpr size_t kBytes = 4 << 20;
  RunRankProcesses(n, [&](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    // What is put lies in the window too: the network reaches only windows of GPUs.
    TestWindow window(comm, (static_cast<size_t>(n) + 1) * kBytes);
    std::byte* const source = window.own() + static_cast<size_t>(n) * kBytes;
    Put(source, std::vector<std::byte>(kBytes, static_cast<std::byte>(rank + 1)));
    board.Meet(kFirstFreeMark, n);
    if (rank != 0) {
      EXPECT_NCCL(ncclPutSignal(source, kBytes, ncclInt8, 0, window.get(),
                                static_cast<size_t>(rank) * kBytes, 0, 0, 0, comm, nullptr));
      EXPECT_NCCL(Finish(comm));
      window.End();
      EXPECT_NCCL(ncclCommDestroy(comm));
      board.Add(kFirstFreeMark, 1);
      return;
    }
    EXPECT_TRUE(board.Await(kFirstFreeMark, n - 1)) << "a put waits for its target";
    for (int peer = 1; peer < n; ++peer) {
      ncclWaitSignalDesc_t desc = {1, peer, 0, 0};
      EXPECT_NCCL(ncclWaitSignal(1, &desc, comm, nullptr));
      EXPECT_NCCL(Finish(comm));
      const std::vector<std::byte> got =
          Get(window.own() + static_cast<size_t>(peer) * kBytes, kBytes);
      EXPECT_EQ(std::count(got.begin(), got.end(), static_cast<std::byte>(peer + 1)),
                static_cast<ptrdiff_t>(kBytes));
    }
    window.End();
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

// Whoever waits for a signal of a rank that dies hears of its death.
TEST_P(WindowLayoutTest, AWaitEndsWithTheDeathOfItsRank) {
  TUTTI_FOR_HOSTS("on GPUs streams wait, and the call returns");
  const Hosts& hosts = GetParam().hosts;
  const int n = static_cast<int>(hosts.size());
  if (n == 1) return;
  RankProcesses processes(n, [&](int rank, Board& board) {
    PlayHost(hosts, rank);
    ncclComm_t comm = Join(rank, n, board);
    ASSERT_NE(comm, nullptr);
    {
      TestWindow window(comm, 4096);
      board.Meet(kFirstFreeMark, n);
      if (rank == n - 1) {
        kill(getpid(), SIGKILL);
        while (true) pause();
      }
      ncclWaitSignalDesc_t desc = {1, n - 1, 0, 0};
      EXPECT_EQ(ncclWaitSignal(1, &desc, comm, nullptr), ncclRemoteError);
      EXPECT_THAT(ncclGetLastError(comm), ::testing::HasSubstr(fmt::format("rank {} (", n - 1)));
    }
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  processes.ExpectDeath(n - 1);
  processes.Wait();
}

// A rank that ends without a word leaves its memory where the others have it mapped.
TEST(WindowProcessesTest, MemoryOutlivesTheProcess) {
  TUTTI_FOR_HOSTS("kernels of GPUs have no flat space yet");
  RankProcesses processes(2, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, 2, board);
    ASSERT_NE(comm, nullptr);
    TestWindow window(comm, 1 << 20);
    *window.own() = static_cast<std::byte>(rank + 7);
    EXPECT_NCCL(tuttiBarrier(comm, nullptr));
    if (rank == 1) {
      kill(getpid(), SIGKILL);
      while (true) pause();
    }
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
    EXPECT_EQ(state, ncclRemoteError);
    EXPECT_EQ(*window.At(1, 0), std::byte{8});
    window.End();
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  processes.ExpectDeath(1);
  processes.Wait();
}

}  // namespace
}  // namespace tutti::testing
