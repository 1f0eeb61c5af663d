// Garbage and half-open connections against every port that the ranks listen on change nothing
// about the job.

#include "faults/attack.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "conformance/processes.h"
#include "conformance/suites.h"

namespace tutti::testing {
namespace {

enum Mark { kEntered = kFirstFreeMark, kGo, kRounds };

// Every listener of every rank; how many there were and how many connections they took.
struct Tally {
  int listeners = 0;
  int connections = 0;
};

Tally AssaultAll(const RankProcesses& processes, int num_ranks, Attack& attack) {
  Tally tally;
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (const Listener& listener : ListenersOf(processes.pid(rank))) {
      ++tally.listeners;
      tally.connections += attack.Assault(listener);
    }
  }
  return tally;
}

// Waits until the ranks' processes have so many listeners; in a test that has to go on with them or
// without.
void AwaitListeners(const RankProcesses& processes, int num_ranks, size_t wanted) {
  for (const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       std::chrono::steady_clock::now() < deadline;
       std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    size_t listeners = 0;
    for (int rank = 0; rank < num_ranks; ++rank)
      listeners += ListenersOf(processes.pid(rank)).size();
    if (listeners >= wanted) return;
  }
}

// The listeners that a process keeps: its server of descriptors, and the port of RAS.
constexpr size_t kOwnListeners = 2;

// Returns how many listeners this process has, once there are no more than its own or it is clear
// that they stay.
size_t ListenersInTheEnd() {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(15);
  size_t listeners = ListenersOf(getpid()).size();
  while (listeners > kOwnListeners && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    listeners = ListenersOf(getpid()).size();
  }
  return listeners;
}

class AttackTest : public ::testing::TestWithParam<const char*> {};

TEST_P(AttackTest, DuringInitialisation) {
  constexpr int kRanks = 3;
  const Environment environment(
      Environment::Settings{{"NCCL_SHM_DISABLE", GetParam()}, {"TUTTI_INIT_TIMEOUT_S", "40"}});
  RankProcesses processes(kRanks, [](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    if (rank == 2) {
      ASSERT_TRUE(board.Await(kGo, 1));
    }
    board.Add(kEntered, 1);
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, kRanks, id, rank));
    RunCases(comm, EveryCount(kRanks, {1, 1001}));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  ASSERT_TRUE(processes.board().Await(kEntered, 2));
  // The root, and a socket of each rank that waits.
  AwaitListeners(processes, kRanks, 3);
  Attack attack;
  const Tally tally = AssaultAll(processes, kRanks, attack);
  EXPECT_GE(tally.listeners, 3);
  EXPECT_GT(tally.connections, 20 * tally.listeners) << "the attack hardly reached anybody";
  const auto start = std::chrono::steady_clock::now();
  processes.board().Set(kGo, 1);
  processes.Wait(60);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST_P(AttackTest, DuringCollectives) {
  constexpr int kRanks = 3;
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", GetParam()}});
  RankProcesses processes(kRanks, [](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    const std::vector<Case> cases = EveryCount(kRanks, {1, 30001});
    // The ranks must agree when to end: rank 0 says.
    for (int more = 1; more != 0;) {
      RunCases(comm, cases);
      more = board.Get(kGo) == 0;
      ASSERT_NCCL(ncclBroadcast(&more, &more, 1, ncclInt32, 0, comm, nullptr));
      board.Add(kRounds, 1);
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  ASSERT_TRUE(processes.board().Await(kRounds, kRanks));
  Attack attack;
  const Tally tally = AssaultAll(processes, kRanks, attack);
  EXPECT_GE(tally.listeners, kRanks);
  EXPECT_GT(tally.connections, 20 * tally.listeners) << "the attack hardly reached anybody";
  EXPECT_TRUE(processes.board().Await(kRounds, processes.board().Get(kRounds) + 2 * kRanks));
  processes.board().Set(kGo, 1);
  processes.Wait(60);
}

INSTANTIATE_TEST_SUITE_P(Ways, AttackTest, ::testing::Values("0", "1"), [](const auto& instance) {
  return instance.param[0] == '0' ? "SharedMemory" : "Sockets";
});

// Nobody listens for more than the job needs, and nothing of a communicator stays open behind it.
TEST(ListenersTest, EndWithTheirCommunicator) {
  RunRankProcesses(2, [](int rank, Board& board) {
    ncclComm_t alone = nullptr;
    ASSERT_NCCL(ncclCommInitAll(&alone, 1, nullptr));
    ASSERT_NCCL(ncclCommDestroy(alone));
    EXPECT_LE(ListenersInTheEnd(), kOwnListeners);
    ncclComm_t comm = Join(rank, 2, board);
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_LE(ListenersInTheEnd(), kOwnListeners);
  });
}

// The root of a communicator of one rank has nobody to wait for.
TEST(ListenersTest, OfCommunicatorsOfOneRankEndToo) {
  RunRankProcesses(1, [](int, Board&) {
    const auto make_and_destroy = [] {
      ncclComm_t alone = nullptr;
      ASSERT_NCCL(ncclCommInitAll(&alone, 1, nullptr));
      ASSERT_NCCL(ncclCommDestroy(alone));
    };
    for (int i = 0; i < 30; ++i) make_and_destroy();
    EXPECT_LE(ListenersInTheEnd(), kOwnListeners);
  });
}

}  // namespace
}  // namespace tutti::testing
