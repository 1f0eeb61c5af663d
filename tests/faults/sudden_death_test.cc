// Ranks that kill themselves at seeded moments of every call that ranks make together, and of
// initialisation: all survivors hear of it in time, name the same lost ranks and no others, and go
// on without them.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "conformance/place.h"
#include "conformance/processes.h"
#include "faults/deaths.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(SuddenDeathTest, InJointCallsOfAFewRanks) {
  for (const int num_ranks : UpToMostRanks({2, 3, 4})) {
    SCOPED_TRACE(fmt::format("{} ranks, TUTTI_TEST_SEED={}", num_ranks, TestSeed()));
    EXPECT_GT(RunPlan(MakePlan(num_ranks, TestSeed())).deaths, 0);
    if (HasFailure()) return;
  }
}

// What first showed that survivors can be stranded: the victim comes late, and dies while all the
// others wait for it in a split.
TEST(SuddenDeathTest, WhileAllOthersWaitInASplit) {
  constexpr int kRanks = 4;
  TUTTI_NEEDS_RANKS(kRanks);
  for (const int victim : {0, 2}) {
    Plan plan;
    plan.num_ranks = kRanks;
    plan.moments.push_back(
        {.call = Call::kSplit, .victim = victim, .delay_us = 200'000, .enters = false});
    RunPlan(plan);
  }
}

// The victim dies before it comes to the call, or in the midst of it.
TEST(SuddenDeathTest, InSuspendOrResume) {
  for (const bool enters : {false, true}) {
    for (const int delay_us : {200, 3'000, 30'000}) {
      Plan plan;
      plan.num_ranks = 3;
      plan.moments.push_back(
          {.call = Call::kSuspend, .victim = 1, .delay_us = delay_us, .enters = enters});
      PrintWaits(RunPlan(plan).waits);
    }
  }
}

// The same where the ranks connect to one another, in the first call, and tell one another how
// their memory is reached, in each.
TEST(SuddenDeathTest, InDevCommCreateOverTheNetwork) {
  const Environment environment(Environment::Settings{{"NCCL_P2P_DISABLE", "1"}});
  for (const int victim : {0, 1, 2}) {
    for (const int delay_us : {0, 1'000, 4'000}) {
      SCOPED_TRACE(fmt::format("rank {} after {} us", victim, delay_us));
      Plan plan;
      plan.num_ranks = 3;
      plan.by_sockets = true;
      plan.moments.push_back({.call = Call::kDevComm, .victim = victim, .delay_us = delay_us});
      PrintWaits(RunPlan(plan).waits);
      if (HasFailure()) return;
    }
  }
}

// Two ranks call ncclCommGrow, and the newcomer dies meanwhile: they cannot make the larger
// communicator, or hear of the death in it, and the one that they have goes on.
void GrowByAVictim(int rank, int delay_us, Board& board) {
  constexpr int kOld = 2, kIdMade = kFirstFreeMark, kDiedAtUs = kFirstFreeMark + 1, kIdSlot = 1;
  ncclUniqueId id;
  ncclComm_t grown = nullptr;
  if (rank == kOld) {
    UseDevice(rank);
    ASSERT_TRUE(board.Await(kIdMade, 1));
    std::memcpy(&id, board.bytes(kIdSlot).data(), sizeof(id));
    DieAfter(delay_us, [&board](int64_t now_us) { board.Set(kDiedAtUs, now_us); });
    ncclCommGrow(nullptr, kOld + 1, &id, kOld, &grown, nullptr);
    while (true) pause();
  }
  ncclComm_t comm = Join(rank, kOld, board);
  ASSERT_NE(comm, nullptr);
  if (rank == 0) {
    ASSERT_NCCL(ncclCommGetUniqueId(comm, &id));
    std::memcpy(board.bytes(kIdSlot).data(), &id, sizeof(id));
    board.Set(kIdMade, 1);
  }
  ncclResult_t result =
      ncclCommGrow(comm, kOld + 1, rank == 0 ? &id : nullptr, -1, &grown, nullptr);
  std::string told = ncclGetLastError(nullptr);
  if (result == ncclSuccess) {
    while (result == ncclSuccess) result = Reduce(grown);
    told = ncclGetLastError(grown);
  }
  ASSERT_TRUE(board.Await(kDiedAtUs, 1)) << told;
  EXPECT_LT(NowUs() - board.Get(kDiedAtUs), kNotStrandedUs);
  EXPECT_THAT(told, AnyOf(HasSubstr("rank 2 ("), HasSubstr("missing: 2")));
  if (grown != nullptr) {
    EXPECT_NCCL(ncclCommAbort(grown));
  }
  EXPECT_NCCL(Reduce(comm));
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NewcomerDeathTest, AtAnyMomentOfGrow) {
  constexpr int kRanks = 3;
  TUTTI_NEEDS_RANKS(kRanks);
  // A newcomer that nobody has seen is missed at the deadline.
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "2"}});
  std::mt19937 random(TestSeed());
  for (int i = 0; i < 6; ++i) {
    const auto delay_us = static_cast<int>(random() % 10'000);
    SCOPED_TRACE(fmt::format("after {} us, TUTTI_TEST_SEED={}", delay_us, TestSeed()));
    RankProcesses processes(kRanks,
                            [&](int rank, Board& board) { GrowByAVictim(rank, delay_us, board); });
    processes.ExpectDeath(kRanks - 1);
    processes.Wait();
    if (HasFailure()) return;
  }
}

TEST(SlowSuddenDeathTest, TwoHundredMoments) {
  uint32_t seed = TestSeed();
  std::vector<Waited> waits;
  for (int deaths = 0; deaths < 200; ++seed) {
    const int num_ranks = 2 + static_cast<int>(seed * 7 % 15);  // 2 to 16
    SCOPED_TRACE(fmt::format("{} ranks, seed {}", num_ranks, seed));
    fmt::print("seed {}\n", seed);
    fflush(stdout);
    const Outcome outcome = RunPlan(MakePlan(num_ranks, seed));
    if (HasFailure()) return;
    deaths += outcome.deaths;
    waits.insert(waits.end(), outcome.waits.begin(), outcome.waits.end());
  }
  PrintWaits(waits);
}

// Whoever dies while the ranks find one another: nobody is blamed who lives.
TEST(SlowSuddenDeathTest, DuringInitialisation) {
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "10"}});
  for (uint32_t seed = TestSeed(); seed < TestSeed() + 40; ++seed) {
    std::mt19937 random(seed);
    const int num_ranks = 2 + static_cast<int>(random() % 7);
    const int victim = static_cast<int>(random() % static_cast<uint32_t>(num_ranks));
    const int delay_us = static_cast<int>(random() % 30'000);
    SCOPED_TRACE(fmt::format("{} ranks, rank {} dies after {} us, seed {}", num_ranks, victim,
                             delay_us, seed));
    RankProcesses processes(num_ranks, [&](int rank, Board& board) {
      const ncclUniqueId id = SharedId(rank, board);
      board.Meet(0, num_ranks);
      if (rank == victim) {
        std::thread([delay_us] {
          std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
          kill(getpid(), SIGKILL);
        }).detach();
      }
      ncclComm_t comm = nullptr;
      ncclResult_t result = ncclCommInitRank(&comm, num_ranks, id, rank);
      if (rank == victim)
        while (true) pause();
      const int64_t until_us = NowUs() + kNotStrandedUs;
      std::string told = ncclGetLastError(nullptr);
      while (comm != nullptr && result == ncclSuccess && NowUs() < until_us) {
        EXPECT_NCCL(ncclCommGetAsyncError(comm, &result));
        told = ncclGetLastError(comm);
        if (result != ncclSuccess) {
          float value = 1;
          EXPECT_NE(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr),
                    ncclSuccess);
          told = ncclGetLastError(comm);
        }
      }
      EXPECT_NE(result, ncclSuccess) << "rank " << rank;
      // The root is in the process of rank 0.
      EXPECT_THAT(told,
                  AnyOf(HasSubstr(fmt::format("rank {} (", victim)),
                        HasSubstr(fmt::format("missing: {}", victim)), HasSubstr("the root")));
      if (comm != nullptr) {
        EXPECT_NCCL(ncclCommAbort(comm));
      }
    });
    processes.ExpectDeath(victim);
    processes.Wait(60);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tutti::testing
