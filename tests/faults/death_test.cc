// Ranks that die, stop, or leave too early: the others hear of it in time, by name, and can go on
// without them.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "bootstrap/unique_id.h"
#include "conformance/processes.h"
#include "conformance/suites.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

enum Mark { kRounds = kFirstFreeMark, kKilledAtMs, kReady, kGo };

int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Within which every survivor must know. Kernels give up a silent connection after 30 s: what is
// heard before was not heard from them.
constexpr int64_t kBoundMs = 20'000;

// AllReduces until one fails; the failure comes in time and names the victim.
void ReduceUntilDeath(ncclComm_t comm, size_t count, int victim, Board& board) {
  std::vector<float> data(count, 0.0f);
  ncclResult_t result = ncclSuccess;
  while (result == ncclSuccess) {
    result = ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, comm, nullptr);
    board.Add(kRounds, 1);
  }
  const int64_t known_at_ms = NowMs();
  EXPECT_EQ(result, ncclRemoteError) << ncclGetLastError(comm);
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr(fmt::format("rank {} ", victim)));
  ASSERT_TRUE(board.Await(kKilledAtMs, 1));
  EXPECT_LT(known_at_ms - board.Get(kKilledAtMs), kBoundMs);
  // From now on every call says the same at once.
  const int64_t again_ms = NowMs();
  EXPECT_NE(ncclAllReduce(data.data(), data.data(), 1, ncclFloat32, ncclSum, comm, nullptr),
            ncclSuccess);
  EXPECT_LT(NowMs() - again_ms, kBoundMs);
  ncclResult_t state = ncclSuccess;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
  EXPECT_EQ(state, ncclRemoteError);
}

// The survivors make a new communicator and it computes what it should.
void GoOnWithout(ncclComm_t comm, int victim, int survivors) {
  ncclComm_t fewer = nullptr;
  ASSERT_NCCL(ncclCommShrink(comm, &victim, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
  int count = 0;
  EXPECT_NCCL(ncclCommCount(fewer, &count));
  EXPECT_EQ(count, survivors);
  RunCases(fewer, EveryCount(survivors, {1, 1001, 30001}));
  const int64_t start_ms = NowMs();
  EXPECT_NCCL(ncclCommAbort(comm));
  EXPECT_LT(NowMs() - start_ms, kBoundMs);
  RunCases(fewer, EveryTypeAndOperatorOfAllReduce(33));
  EXPECT_NCCL(ncclCommDestroy(fewer));
}

// Says what a process holds of the system.
struct Held {
  size_t descriptors = 0;
  size_t threads = 0;
  bool operator==(const Held&) const = default;
};

Held HeldNow() { return {EntriesIn("/proc/self/fd"), EntriesIn("/proc/self/task")}; }

// Connections end on the loop's thread, in their own time.
constexpr int64_t kOwnTimeMs = 15'000;

// At most `most`, or what it is after all.
Held HeldAfterAWhile(const Held& most) {
  const int64_t until_ms = NowMs() + static_cast<int64_t>(kOwnTimeMs * TimeScale());
  Held held = HeldNow();
  while ((held.descriptors > most.descriptors || held.threads > most.threads) &&
         NowMs() < until_ms) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    held = HeldNow();
  }
  return held;
}

// Returns what is held once the library's threads have nothing left to close.
Held HeldInTheEnd() {
  EXPECT_TRUE(AwaitAllAsleep("tutti-"));
  return HeldNow();
}

// All that the test does later, but nobody dies: afterwards the process holds whatever it keeps for
// all of its communicators.
void Rehearse(int rank, int num_ranks, int victim, size_t count, Board& board) {
  constexpr int kSlot = 1;
  constexpr int kFirstMeeting = 100;
  ncclUniqueId id;
  if (rank == 0) {
    ASSERT_NCCL(ncclGetUniqueId(&id));
    std::memcpy(board.bytes(kSlot).data(), &id, sizeof(id));
  }
  board.Meet(kFirstMeeting, num_ranks);
  std::memcpy(&id, board.bytes(kSlot).data(), sizeof(id));
  ncclComm_t comm = nullptr;
  ASSERT_NCCL(ncclCommInitRank(&comm, num_ranks, id, rank));
  std::vector<float> data(count, 0.0f);
  EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, comm, nullptr));
  if (rank != victim) {
    ncclComm_t fewer = nullptr;
    ASSERT_NCCL(ncclCommShrink(comm, &victim, 1, &fewer, nullptr, NCCL_SHRINK_DEFAULT));
    RunCases(fewer, EveryCount(num_ranks - 1, {1, 30001}));
    EXPECT_NCCL(ncclCommDestroy(fewer));
  }
  board.Meet(kFirstMeeting + 1, num_ranks);
  EXPECT_NCCL(ncclCommDestroy(comm));
  board.Meet(kFirstMeeting + 2, num_ranks);
}

struct Death {
  const char* name;
  Hosts hosts;
  Environment::Settings settings;
};
const std::vector<Death>& Deaths() {
  static const std::vector<Death> kDeaths = {
      {"SharedMemory", {"", "", "", ""}, {}},
      {"Sockets", {"", "", "", ""}, {{"NCCL_SHM_DISABLE", "1"}}},
      {"TwoHosts", {"a", "a", "b", "b"}, {}}};
  return kDeaths;
}

class KillTest : public ::testing::TestWithParam<std::tuple<size_t, int, size_t>> {};

TEST_P(KillTest, SurvivorsHearOfItAndGoOn) {
  const auto& [which, victim, count] = GetParam();
  const Death& death = Deaths()[which];
  const int num_ranks = static_cast<int>(death.hosts.size());
  const Environment environment(death.settings);
  RankProcesses processes(num_ranks, [&, victim = victim, count = count](int rank, Board& board) {
    PlayHost(death.hosts, rank);
    Rehearse(rank, num_ranks, victim, count, board);
    const Held before = HeldInTheEnd();
    ncclComm_t comm = Join(rank, num_ranks, board);
    ASSERT_NE(comm, nullptr);
    ReduceUntilDeath(comm, count, victim, board);
    GoOnWithout(comm, victim, num_ranks - 1);
    const Held after = HeldAfterAWhile(before);
    EXPECT_LE(after.descriptors, before.descriptors) << "descriptors leaked";
    EXPECT_LE(after.threads, before.threads) << "threads leaked";
  });
  ASSERT_TRUE(processes.board().Await(kRounds, 20));
  processes.Signal(victim, SIGKILL);
  processes.board().Set(kKilledAtMs, NowMs());
  processes.Wait(60);
}

INSTANTIATE_TEST_SUITE_P(Deaths, KillTest,
                         ::testing::Combine(::testing::Range(size_t{0}, size_t{3}),
                                            ::testing::Values(0, 2),
                                            ::testing::Values(size_t{1}, size_t{1} << 20)),
                         [](const auto& instance) {
                           return fmt::format(
                               "{}_rank{}_{}", Deaths()[std::get<0>(instance.param)].name,
                               std::get<1>(instance.param), std::get<2>(instance.param));
                         });

// Nobody is in a call: the state of the communicator tells.
TEST(DeathTest, OfARankIsKnownToIdleRanksToo) {
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    RankProcesses processes(3, [](int rank, Board& board) {
      ncclComm_t comm = Join(rank, 3, board);
      ASSERT_NE(comm, nullptr);
      board.Add(kReady, 1);
      ASSERT_TRUE(board.Await(kKilledAtMs, 1));
      ncclResult_t state = ncclSuccess;
      while (state == ncclSuccess && NowMs() < board.Get(kKilledAtMs) + kBoundMs) {
        ASSERT_NCCL(ncclCommGetAsyncError(comm, &state));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_EQ(state, ncclRemoteError);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 "));
      EXPECT_NCCL(ncclCommAbort(comm));
    });
    ASSERT_TRUE(processes.board().Await(kReady, 3));
    processes.Signal(1, SIGKILL);
    processes.board().Set(kKilledAtMs, NowMs());
    processes.Wait(30);
  }
}

// In the first job rank 0 is alone after two deaths. In the second job rank 2 dies, and the other
// two ranks go on.
TEST(DeathTest, OfTheMajorityEndsTheRestWithAQuorum) {
  const Environment environment(Environment::Settings{{"TUTTI_QUORUM", "1"}});
  for (const int first_victim : {1, 2}) {
    RankProcesses processes(3, [first_victim](int rank, Board& board) {
      ncclComm_t comm = Join(rank, 3, board);
      ASSERT_NE(comm, nullptr);
      board.Add(kReady, 1);
      ncclResult_t result = ncclSuccess;
      float value = 0;
      while (result == ncclSuccess)
        result = ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr);
      EXPECT_EQ(result, ncclRemoteError);
      std::vector<int> lost = {2};
      if (first_victim == 1) lost.push_back(1);
      ncclComm_t fewer = nullptr;
      result = ncclCommShrink(comm, lost.data(), static_cast<int>(lost.size()), &fewer, nullptr,
                              NCCL_SHRINK_ABORT);
      if (first_victim == 1) {
        EXPECT_EQ(result, ncclRemoteError);
        EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("only 1 of 3 ranks remain"));
        EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("TUTTI_QUORUM"));
      } else {
        EXPECT_NCCL(result);
        EXPECT_NCCL(ncclCommDestroy(fewer));
      }
      EXPECT_NCCL(ncclCommAbort(comm));
    });
    ASSERT_TRUE(processes.board().Await(kReady, 3));
    for (int victim = first_victim; victim < 3; ++victim) processes.Signal(victim, SIGKILL);
    processes.Wait(30);
  }
}

TEST(DeathTest, DuringInitialisationEndsIt) {
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "4"}});
  RankProcesses processes(3, [](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    if (rank == 2) return;  // never comes
    std::thread watcher([&board, waiting = ThisThread()] {
      EXPECT_TRUE(AwaitAsleep(waiting));
      board.Add(kReady, 1);
    });
    ncclComm_t comm = nullptr;
    EXPECT_NE(ncclCommInitRank(&comm, 3, id, rank), ncclSuccess);
    watcher.join();
    EXPECT_EQ(comm, nullptr);
    // The survivor may know before the killer has noted it.
    ASSERT_TRUE(board.Await(kKilledAtMs, 1));
    EXPECT_LT(NowMs() - board.Get(kKilledAtMs), 4000 + kBoundMs);
    // Either its going away was seen, or it had come when the one that never comes was missed, or
    // it had not come yet when it died.
    EXPECT_THAT(ncclGetLastError(nullptr),
                ::testing::AnyOf(HasSubstr("rank 1 ("), HasSubstr("missing: 2"),
                                 HasSubstr("missing: 1-2")));
  });
  ASSERT_TRUE(processes.board().Await(kReady, 2));
  processes.Signal(1, SIGKILL);
  processes.board().Set(kKilledAtMs, NowMs());
  processes.Wait(30);
}

// Where the root of an id listens, as sentences name it.
std::string RootAddress(const ncclUniqueId& id) {
  char bytes[sizeof(id)];
  std::memcpy(bytes, &id, sizeof(id));
  const Result<UniqueId> decoded = UniqueId::Decode(bytes);
  EXPECT_TRUE(decoded.ok()) << decoded.status().message();
  return decoded.ok() ? decoded->root.ToString() : "no address";
}

TEST(DeathTest, OfTheProcessThatMadeTheId) {
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "2"}});
  RankProcesses processes(2, [](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    if (rank == 0) return;  // and with it the root
    ASSERT_TRUE(board.Await(kGo, 1));
    const int64_t start_ms = NowMs();
    ncclComm_t comm = nullptr;
    EXPECT_NE(ncclCommInitRank(&comm, 2, id, rank), ncclSuccess);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr(RootAddress(id)));
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("usually rank 0's, may have ended"));
    EXPECT_LT(NowMs() - start_ms, 2000 + kBoundMs);
  });
  ASSERT_TRUE(processes.board().Await(kIdReady, 1));
  processes.AwaitEnd(0);
  processes.board().Set(kGo, 1);
  processes.Wait(30);
}

TEST(LeaveTest, ARankThatDestroysTooEarlyIsNamed) {
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    RunRankProcesses(
        2,
        [](int rank, Board& board) {
          ncclComm_t comm = Join(rank, 2, board);
          float value = 1;
          EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
          if (rank == 1) {
            EXPECT_NCCL(ncclCommDestroy(comm));
            board.Set(kGo, 1);
            ASSERT_TRUE(board.Await(kReady, 1));  // lives on
            return;
          }
          ASSERT_TRUE(board.Await(kGo, 1));
          const int64_t start_ms = NowMs();
          EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr),
                    ncclRemoteError);
          EXPECT_LT(NowMs() - start_ms, kBoundMs);
          EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 "));
          EXPECT_NCCL(ncclCommAbort(comm));
          board.Set(kReady, 1);
        },
        30);
  }
}

// Whoever destroys right after the last operation takes nothing from those who are still in it.
TEST(LeaveTest, RightAfterAnOperationHarmsNobody) {
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    RunRankProcesses(3, [](int rank, Board& board) {
      for (int round = 0; round < 5; ++round) {
        ncclUniqueId id;
        if (rank == 0) {
          ASSERT_NCCL(ncclGetUniqueId(&id));
          std::memcpy(board.bytes(0).data(), &id, sizeof(id));
        }
        board.Meet(2 * round, 3);
        std::memcpy(&id, board.bytes(0).data(), sizeof(id));
        ncclComm_t comm = nullptr;
        ASSERT_NCCL(ncclCommInitRank(&comm, 3, id, rank));
        RunCase(comm, {.collective = Collective::kBroadcast,
                       .type = ncclInt32,
                       .count = 200001,
                       .once = true});
        EXPECT_NCCL(ncclCommDestroy(comm));
        board.Meet(2 * round + 1, 3);
      }
    });
  }
}

TEST(StopTest, ARankThatIsHeldUpIsNamedAfterTheTimeout) {
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(
        Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}, {"TUTTI_TIMEOUT_S", "2"}});
    RankProcesses processes(3, [](int rank, Board& board) {
      ncclComm_t comm = Join(rank, 3, board);
      ASSERT_NE(comm, nullptr);
      std::vector<float> data(1000);
      ncclResult_t result = ncclSuccess;
      while (result == ncclSuccess) {
        result = ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm,
                               nullptr);
        board.Add(kRounds, 1);
      }
      if (rank != 1) {
        EXPECT_EQ(result, ncclTimeout) << ncclGetLastError(comm);
        EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 1 "));
        EXPECT_LT(NowMs() - board.Get(kKilledAtMs), 2000 + kBoundMs);
        board.Add(kReady, 1);
      }
      EXPECT_NCCL(ncclCommAbort(comm));
    });
    ASSERT_TRUE(processes.board().Await(kRounds, 30));
    processes.board().Set(kKilledAtMs, NowMs());
    processes.Signal(1, SIGSTOP);
    EXPECT_TRUE(processes.board().Await(kReady, 2));
    processes.Signal(1, SIGCONT);
    processes.Wait(30);
  }
}

// All of the others wait in a split, most of them for a rank that waits itself.
TEST(StopTest, ARankThatIsHeldUpIsNamedByAllInASplit) {
  constexpr int kRanks = 4, kHeldUp = 2;
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "5"}});
  RankProcesses processes(kRanks, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board), child = nullptr;
    ASSERT_NE(comm, nullptr);
    board.Add(kGo, 1);
    if (rank == kHeldUp) {
      EXPECT_TRUE(board.Await(kReady, kRanks - 1));
    } else {
      ASSERT_TRUE(board.Await(kKilledAtMs, 1));
      EXPECT_EQ(ncclCommSplit(comm, 0, rank, &child, nullptr), ncclTimeout);
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr(fmt::format("rank {} (", kHeldUp)));
      EXPECT_THAT(ncclGetLastError(comm), HasSubstr("does not answer"));
      board.Add(kReady, 1);
    }
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  ASSERT_TRUE(processes.board().Await(kGo, kRanks));
  processes.Signal(kHeldUp, SIGSTOP);
  processes.board().Set(kKilledAtMs, NowMs());
  EXPECT_TRUE(processes.board().Await(kReady, kRanks - 1));
  processes.Signal(kHeldUp, SIGCONT);
  processes.Wait(30);
}

TEST(CrowdTest, EightRanksOnFewCoresFinish) {
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    const int64_t start_ms = NowMs();
    RunRankProcesses(
        8,
        [](int rank, Board& board) {
          ncclComm_t comm = Join(rank, 8, board);
          for (int i = 0; i < 1000; ++i) {
            int sum = rank + i;
            ASSERT_NCCL(ncclAllReduce(&sum, &sum, 1, ncclInt32, ncclSum, comm, nullptr));
            ASSERT_EQ(sum, 28 + 8 * i);
          }
          EXPECT_NCCL(ncclCommDestroy(comm));
        },
        60);
    RecordProperty(*no_shm == '1' ? "sockets_ms" : "shm_ms", static_cast<int>(NowMs() - start_ms));
  }
}

TEST(IdleTest, TheThreadsOfACommunicatorSleep) {
  for (const char* no_shm : {"0", "1"}) {
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    RunRankProcesses(2, [](int rank, Board& board) {
      ncclComm_t comm = Join(rank, 2, board);
      std::vector<float> data(100000);
      cudaStream_t stream;
      ASSERT_NCCL(tuttiStreamCreate(&stream));
      for (cudaStream_t each : {cudaStream_t{nullptr}, stream})
        EXPECT_NCCL(
            ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm, each));
      EXPECT_NCCL(tuttiStreamSynchronize(stream));
      board.Meet(0, 2);
      const std::vector<pid_t> threads = ThreadsCalled("tutti-");
      EXPECT_FALSE(threads.empty());
      for (const pid_t thread : threads) EXPECT_TRUE(StaysAsleep(thread, 300));
      board.Meet(1, 2);
      EXPECT_NCCL(tuttiStreamDestroy(stream));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

}  // namespace
}  // namespace tutti::testing
