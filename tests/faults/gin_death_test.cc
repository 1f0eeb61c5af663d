// Ranks that kill themselves at seeded moments while kernels put, get, wait and meet: every wait of
// every kernel that is left ends in time, the host is told which rank was lost, and the ranks that
// are left make a smaller communicator whose kernels work.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "conformance/processes.h"
#include "device/gin_cases.h"
#include "faults/deaths.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

enum Mark { kDiedAtUs = kFirstFreeMark, kGone };
constexpr int kRanks = 3;
constexpr size_t kWords = 4096;
constexpr size_t kPlaceBytes = 2048;  // Half of the window holds that of each thread of all ranks.

// How the ranks reach one another.
struct Way {
  const char* name;
  Hosts hosts;
  const char* no_shm;
};
const Way kWays[] = {{"SharedMemory", {"", "", ""}, "0"},
                     {"Network", {"", "", ""}, "1"},
                     {"TwoHosts", {"a", "a", "b"}, "0"}};

// What the kernels do in each round, until the communicator stops. Each ends in a wait that needs
// the other ranks, or in one that needs none but must not last.
struct Round {
  const ncclDevComm& comm;
  const ncclGin& gin;
  ncclWindow_t window;
  uint64_t number;

  ncclTeam world() const { return ncclTeamWorld(comm); }
  int next() const { return (comm.rank + 1) % comm.nRanks; }
  // Returns a number that no other thread of any rank has.
  size_t place() const { return static_cast<size_t>(comm.rank) * blockDim.x + threadIdx.x; }
};
struct Doing {
  const char* name;
  void (*run)(const Round& round);
};
const Doing kDoings[] = {
    {"WaitForSignals",
     [](const Round& r) {
       r.gin.put(r.world(), r.next(), r.window, 0, r.window, 8 * kWords / 2, 4 * kWords,
                 ncclGin_WeakSignalInc{0}, ncclGin_None(), ncclCoopCta());
       r.gin.waitSignal(ncclCoopCta(), 0, r.number);
     }},
    {"Flush",
     [](const Round& r) {
       for (int peer = 0; peer < kRanks; ++peer)
         r.gin.put(r.world(), peer, r.window, r.place() * kPlaceBytes, r.window, 8 * kWords / 2,
                   kPlaceBytes);
       r.gin.flush(ncclCoopCta());
     }},
    {"FillQueues",
     [](const Round& r) {
       for (int peer = 0; peer < kRanks; ++peer)
         r.gin.putValue(r.world(), peer, r.window, 8 * r.place(), r.number);
     }},
    {"WaitForGets",
     [](const Round& r) {
       if (threadIdx.x != 0) return;
       ncclGinRequest_t request;
       r.gin.get(r.world(), r.next(), r.window, 0, r.window, 8 * kWords / 2, 4 * kWords);
       r.gin.flushAsync(r.world(), static_cast<uint32_t>(r.next()), &request);
       r.gin.wait(request);
     }},
    {"WaitForCounters",
     [](const Round& r) {
       r.gin.put(r.world(), r.next(), r.window, 0, r.window, 8 * kWords / 2, 4 * kWords,
                 ncclGin_None(), ncclGin_WeakCounterInc{0}, ncclCoopCta());
       r.gin.waitCounter(ncclCoopCta(), 0, r.number);
     }},
    {"MeetOverTheNetwork",
     [](const Round& r) { ncclGinBarrier(ncclCoopCta(), r.gin, ncclTeamTagWorld(), 0); }},
    {"MeetOverBoth",
     [](const Round& r) { ncclBarrier(ncclCoopCta(), ncclTeamTagWorld(), r.gin, 0); }},
    {"MeetInTeams", [](const Round& r) {
       ncclLsaBarrierSession<ncclCoopCta> barrier(ncclCoopCta(), r.comm, ncclTeamTagLsa(), 0);
       barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
     }}};

void RepeatUntilStopped(ncclDevComm comm, ncclWindow_t window, Doing doing) {
  const ncclGin gin(comm, 0);
  cuda::atomic_ref<uint32_t> stopped(*comm.abortFlag);
  // The threads of the block stop in the same round, because they meet in each.
  for (uint64_t number = 1; ncclCoopBcast(ncclCoopCta(), stopped.load(), 0) == 0; ++number)
    doing.run({comm, gin, window, number});
}

ncclDevCommRequirements_t Asked() {
  ncclDevCommRequirements_t asked = AskGin(1, 1);
  asked.ginQueueDepth = 4;
  asked.worldGinBarrierCount = asked.barrierCount = asked.lsaBarrierCount = 1;
  return asked;
}

void DieAfter(int delay_us, Board& board) {
  std::thread([delay_us, &board] {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    board.Set(kDiedAtUs, NowUs());
    kill(getpid(), SIGKILL);
  }).detach();
}

ncclResult_t AsyncError(ncclComm_t comm) {
  ncclResult_t error = ncclSuccess;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
  return error;
}

// Runs the kernels on a rank until the victim is dead.
void RunUntilDeath(ncclComm_t comm, const Doing& doing, bool dies, int delay_us, Board& board) {
  GinWindow<uint64_t> window(comm, kWords);
  const GinDevComm devcomm(comm, Asked());
  ASSERT_TRUE(devcomm.made());
  board.Meet(1, kRanks);
  if (dies) DieAfter(delay_us, board);
  EXPECT_NCCL(tutti::Launch(RepeatUntilStopped, {1, 2}, devcomm.get(), window.get(), doing));
  while (dies) pause();
}

void ExpectLoss(ncclComm_t comm, int victim, Board& board) {
  const int64_t died_us = board.Get(kDiedAtUs);
  ASSERT_NE(died_us, 0) << "the kernel ended before the death: " << ncclGetLastError(comm);
  EXPECT_LT(NowUs() - died_us, kNotStrandedUs);
  EXPECT_EQ(AsyncError(comm), ncclRemoteError);
  EXPECT_THAT(ncclGetLastError(comm), HasSubstr(fmt::format("rank {} ", victim)));
}

void RunJob(const Way& way, const Doing& doing, int victim, int delay_us) {
  const Environment environment(
      Environment::Settings{{"NCCL_SHM_DISABLE", way.no_shm}, {"TUTTI_INIT_TIMEOUT_S", "60"}});
  RankProcesses processes(kRanks, [&](int rank, Board& board) {
    PlayHost(way.hosts, rank);
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    RunUntilDeath(comm, doing, rank == victim, delay_us, board);
    ExpectLoss(comm, victim, board);
    if (::testing::Test::HasFailure()) return;
    ncclComm_t fewer = nullptr;
    ASSERT_NCCL(ncclCommShrink(comm, &victim, 1, &fewer, nullptr, NCCL_SHRINK_ABORT));
    EXPECT_NCCL(ncclCommAbort(comm));
    GinAllToAll(fewer, rank > victim ? rank - 1 : rank, kRanks - 1, 1000, 2);
    EXPECT_NCCL(ncclCommDestroy(fewer));
  });
  processes.ExpectDeath(victim);
  processes.Wait(60);
}

class GinDeathTest : public ::testing::TestWithParam<std::tuple<Way, Doing>> {};

TEST_P(GinDeathTest, EndsTheKernelsOfAllOthers) {
  const auto& [way, doing] = GetParam();
  // Each way and each kind of wait has victims and moments of its own.
  std::mt19937 random(TestSeed() + static_cast<uint32_t>(std::string(doing.name).size()) * 31 +
                      static_cast<uint32_t>(std::string(way.name).size()));
  const auto victim = static_cast<int>(random() % kRanks);
  const auto delay_us = static_cast<int>(random() % 20'000);
  SCOPED_TRACE(
      fmt::format("rank {} dies after {} us, TUTTI_TEST_SEED={}", victim, delay_us, TestSeed()));
  RunJob(way, doing, victim, delay_us);
}

INSTANTIATE_TEST_SUITE_P(Ways, GinDeathTest,
                         ::testing::Combine(::testing::ValuesIn(kWays),
                                            ::testing::ValuesIn(kDoings)),
                         [](const auto& instance) {
                           return fmt::format("{}_{}", std::get<0>(instance.param).name,
                                              std::get<1>(instance.param).name);
                         });

TEST(SlowGinDeathTest, AHundredMoments) {
  std::mt19937 random(TestSeed());
  for (int i = 0; i < 100; ++i) {
    const Way& way = kWays[random() % std::size(kWays)];
    const Doing& doing = kDoings[random() % std::size(kDoings)];
    const auto victim = static_cast<int>(random() % kRanks);
    const auto delay_us = static_cast<int>(random() % 50'000);
    SCOPED_TRACE(fmt::format("number {}: {}, {}, rank {} after {} us, TUTTI_TEST_SEED={}", i,
                             way.name, doing.name, victim, delay_us, TestSeed()));
    RunJob(way, doing, victim, delay_us);
    if (HasFailure()) return;
  }
}

// A rank that ends its communicator in order is not lost; but nobody is left to end the wait.
TEST(GinLeaveTest, AKernelDoesNotWaitForRanksThatHaveAllLeft) {
  const Doing wait = {"", [](const Round& r) { r.gin.waitSignal(ncclCoopCta(), 0, r.number); }};
  for (const char* no_shm : {"0", "1"}) {
    SCOPED_TRACE(no_shm);
    const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", no_shm}});
    RunRankProcesses(kRanks, [&wait](int rank, Board& board) {
      ncclComm_t comm = Join(rank, kRanks, board);
      ASSERT_NE(comm, nullptr);
      {
        GinWindow<uint64_t> window(comm, kWords);
        const GinDevComm devcomm(comm, Asked());
        board.Meet(1, kRanks);
        if (rank == 0) {
          EXPECT_NCCL(tutti::Launch(RepeatUntilStopped, {1, 2}, devcomm.get(), window.get(), wait));
          EXPECT_EQ(AsyncError(comm), ncclRemoteError);
          EXPECT_THAT(ncclGetLastError(comm), HasSubstr("destroyed their communicators"));
          board.Set(kGone, 1);
        }
      }
      EXPECT_NCCL(rank == 0 ? ncclCommAbort(comm) : ncclCommDestroy(comm));
      EXPECT_TRUE(board.Await(kGone, 1));  // The processes live on.
    });
  }
}

}  // namespace
}  // namespace tutti::testing
