// The rule of time in every call that ranks make together: a warning, then an error that names the
// rank that did not come; and no waiting at all for a rank that is known not to come.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "conformance/processes.h"
#include "testing/threads.h"
#include "tutti/tutti.h"

namespace tutti::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum Mark { kJoined = kFirstFreeMark, kStopped, kEnded, kInCall, kRounds };

constexpr int kRanks = 4, kHeldUp = 2, kKilled = 1;
// Far below TUTTI_INIT_TIMEOUT_S, which these tests leave at 300 s, for a loaded machine.
constexpr double kSoonS = 60;

double NowS() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A folder for the logs of rank processes, one file for each process.
class Logs {
 public:
  Logs()
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("tutti_waits_{}", static_cast<int>(getpid()))),
        environment_({{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_FILE", (folder_ / "%p").string()}}) {
    std::filesystem::create_directories(folder_);
  }
  ~Logs() { std::filesystem::remove_all(folder_); }
  // Returns the log of the calling process.
  std::string Own() const {
    std::ifstream file(folder_ / std::to_string(getpid()));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  const std::filesystem::path folder_;
  const Environment environment_;
};

ncclResult_t Reduce(ncclComm_t comm) {
  float value = 1;
  return ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr);
}

using RankList = ncclResult_t (*)(ncclComm_t, int*, int, int*);

std::vector<int> Listed(RankList list, ncclComm_t comm) {
  std::array<int, kRanks> ranks;
  int count = 0;
  EXPECT_NCCL(list(comm, ranks.data(), kRanks, &count));
  return {ranks.begin(), ranks.begin() + count};
}

// ---------------------------------------------------------------------------------------------------------------------
// A rank that is stopped before a call of the others

enum class Call { kSplit, kShrink, kGrow, kSuspend, kWindow, kFirstMessage };

// Shrinks without the rank that was killed.
ncclResult_t ShrinkAfterDeath(ncclComm_t comm) {
  ncclComm_t fewer = nullptr;
  EXPECT_EQ(Reduce(comm), ncclRemoteError);
  std::vector<int> lost = Listed(tuttiCommGetLostRanks, comm);
  EXPECT_THAT(lost, ElementsAre(kKilled));
  return ncclCommShrink(comm, lost.data(), static_cast<int>(lost.size()), &fewer, nullptr,
                        NCCL_SHRINK_ABORT);
}

ncclResult_t GrowByOne(ncclComm_t comm, int rank) {
  ncclUniqueId id;
  ncclComm_t grown = nullptr;
  if (rank == 0) {
    EXPECT_NCCL(ncclCommGetUniqueId(comm, &id));
  }
  return ncclCommGrow(comm, kRanks + 1, rank == 0 ? &id : nullptr, -1, &grown, nullptr);
}

ncclResult_t Make(Call call, ncclComm_t comm, int rank) {
  ncclComm_t child = nullptr;
  ncclWindow_t window = nullptr;
  float value = 1;
  switch (call) {
    case Call::kSplit:
      return ncclCommSplit(comm, 0, rank, &child, nullptr);
    case Call::kShrink:
      return ShrinkAfterDeath(comm);
    case Call::kGrow:
      return GrowByOne(comm, rank);
    case Call::kSuspend:
      return ncclCommSuspend(comm, NCCL_SUSPEND_MEM);
    case Call::kWindow:
      return ncclCommWindowRegister(comm, nullptr, 4096, &window, NCCL_WIN_DEFAULT);
    case Call::kFirstMessage:
      return ncclRecv(&value, 1, ncclFloat32, kHeldUp, comm, nullptr);
  }
  return ncclInternalError;
}

struct StopCase {
  const char* name;
  Call call;
  const char* no_shm;
  const char* doing;  // a part of the sentences
};

class StoppedRankTest : public ::testing::TestWithParam<StopCase> {};

TEST_P(StoppedRankTest, IsWarnedOfAndNamedAtTheTimeOut) {
  const StopCase& one = GetParam();
  const Environment environment(
      Environment::Settings{{"NCCL_SHM_DISABLE", one.no_shm}, {"TUTTI_TIMEOUT_S", "3"}});
  const Logs logs;
  const bool kills = one.call == Call::kShrink;
  const int waiting = kRanks - 1 - (kills ? 1 : 0);
  RankProcesses processes(kRanks, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    ASSERT_NE(comm, nullptr);
    board.Add(kJoined, 1);
    if (rank == kHeldUp || (kills && rank == kKilled)) {
      EXPECT_TRUE(board.Await(kEnded, waiting, 2 * kSoonS));
      EXPECT_NCCL(ncclCommAbort(comm));
      return;
    }
    ASSERT_TRUE(board.Await(kStopped, 1));
    const double start_s = NowS();
    EXPECT_EQ(Make(one.call, comm, rank), ncclTimeout);
    EXPECT_LT(NowS() - start_s, kSoonS);
    const std::string error = ncclGetLastError(nullptr);
    const std::string culprit = fmt::format("rank {} (", kHeldUp);
    for (const std::string& words :
         {culprit, std::string("does not answer"), std::string("communicator "),
          std::string("TUTTI_TIMEOUT_S"), std::string(one.doing)})
      EXPECT_THAT(error, HasSubstr(words));
    const double heard_s = NowS() + kSoonS;
    while (Listed(tuttiCommGetHungRanks, comm).empty() && NowS() < heard_s)
      std::this_thread::yield();
    EXPECT_THAT(Listed(tuttiCommGetHungRanks, comm), ElementsAre(kHeldUp)) << error;
    EXPECT_THAT(logs.Own(), HasSubstr("has waited"));
    EXPECT_THAT(logs.Own(), HasSubstr(culprit));
    board.Add(kEnded, 1);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  ASSERT_TRUE(processes.board().Await(kJoined, kRanks));
  processes.Signal(kHeldUp, SIGSTOP);
  if (kills) processes.Signal(kKilled, SIGKILL);
  processes.board().Set(kStopped, 1);
  EXPECT_TRUE(processes.board().Await(kEnded, waiting, 2 * kSoonS));
  processes.Signal(kHeldUp, SIGCONT);
  processes.Wait();
}

INSTANTIATE_TEST_SUITE_P(
    Calls, StoppedRankTest,
    ::testing::Values(StopCase{"Split", Call::kSplit, "0", "in ncclCommSplit"},
                      StopCase{"Shrink", Call::kShrink, "0", "in ncclCommShrink without rank 1"},
                      StopCase{"ShrinkBySockets", Call::kShrink, "1", "in ncclCommShrink"},
                      StopCase{"Grow", Call::kGrow, "0", "in ncclCommGrow"},
                      StopCase{"Suspend", Call::kSuspend, "0", "in ncclCommSuspend"},
                      StopCase{"Window", Call::kWindow, "0", "in ncclCommWindowRegister"},
                      StopCase{"FirstMessage", Call::kFirstMessage, "1", "sends and receives"}),
    [](const auto& instance) { return std::string(instance.param.name); });

// ---------------------------------------------------------------------------------------------------------------------
// A survivor that has left

struct LeaveCase {
  const char* name;
  bool while_waiting;  // the others leave when the waiting rank is in the call
  bool ends;           // the processes that leave end
};

class LeftRankTest : public ::testing::TestWithParam<LeaveCase> {};

TEST_P(LeftRankTest, EndsTheShrinkOfTheLastAtOnce) {
  constexpr int kLast = 2;
  const LeaveCase& one = GetParam();
  RankProcesses processes(kRanks, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board), fewer = nullptr;
    ASSERT_NE(comm, nullptr);
    EXPECT_NCCL(Reduce(comm));
    board.Add(kJoined, 1);
    while (rank == 0) pause();  // until the kill
    EXPECT_EQ(Reduce(comm), ncclRemoteError);
    std::vector<int> lost = Listed(tuttiCommGetLostRanks, comm);
    EXPECT_THAT(lost, ElementsAre(0));
    if (rank != kLast) {
      if (one.while_waiting) {
        ASSERT_TRUE(board.Await(kInCall, 1));
      }
      EXPECT_NCCL(ncclCommAbort(comm));
      board.Add(kStopped, 1);
      if (!one.ends) {
        EXPECT_TRUE(board.Await(kEnded, 1, kSoonS));
      }
      return;
    }
    if (!one.while_waiting) {
      ASSERT_TRUE(board.Await(kStopped, kRanks - 2));
    }
    std::thread watcher([&board, &one, waiting = ThisThread()] {
      if (!one.while_waiting) return;
      EXPECT_TRUE(AwaitAsleep(waiting));
      board.Set(kInCall, 1);
    });
    const double start_s = NowS();
    EXPECT_EQ(ncclCommShrink(comm, lost.data(), 1, &fewer, nullptr, NCCL_SHRINK_ABORT),
              ncclRemoteError);
    EXPECT_LT(NowS() - start_s, kSoonS);
    const std::string error = ncclGetLastError(nullptr);
    EXPECT_THAT(error, ::testing::ContainsRegex("rank [13] "));
    EXPECT_THAT(error, ::testing::AnyOf(HasSubstr("of the parent communicator"), HasSubstr("lost"),
                                        HasSubstr("gave up")));
    watcher.join();
    board.Set(kEnded, 1);
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  ASSERT_TRUE(processes.board().Await(kJoined, kRanks));
  processes.Signal(0, SIGKILL);
  processes.Wait();
}

INSTANTIATE_TEST_SUITE_P(Leave, LeftRankTest,
                         ::testing::Values(LeaveCase{"BeforeAndEnds", false, true},
                                           LeaveCase{"BeforeAndLivesOn", false, false},
                                           LeaveCase{"MeanwhileAndEnds", true, true},
                                           LeaveCase{"MeanwhileAndLivesOn", true, false}),
                         [](const auto& instance) { return std::string(instance.param.name); });

// ---------------------------------------------------------------------------------------------------------------------
// Initialisation

TEST(InitWaitTest, WarnsOfTheMissingRank) {
  const Environment environment(Environment::Settings{{"TUTTI_INIT_TIMEOUT_S", "2"}});
  const Logs logs;
  RunRankProcesses(3, [&](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    if (rank == 2) return;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 3, id, rank), ncclTimeout);
    EXPECT_THAT(ncclGetLastError(nullptr), HasSubstr("2 of 3 ranks arrived within 2 s"));
    EXPECT_THAT(logs.Own(), HasSubstr("2 of 3 ranks have arrived; missing: 2"));
    EXPECT_THAT(logs.Own(), HasSubstr("TUTTI_INIT_TIMEOUT_S"));
  });
}

// Returns the size of this process's address space in bytes.
rlim_t AddressSpaceNow() {
  std::ifstream file("/proc/self/statm");
  rlim_t pages = 0;
  file >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

struct LimitCase {
  const char* name;
  __rlimit_resource resource;
  rlim_t most;
  bool beyond_use;  // `most` counts from the present address space
  const char* said;
};

class LimitedRankTest : public ::testing::TestWithParam<LimitCase> {};

// The limits hold for a user without privileges, who cannot read the home of root.
TEST_P(LimitedRankTest, TellsTheOthersThatItCannotCome) {
  const LimitCase& one = GetParam();
  const Environment environment(
      Environment::Settings{{"HOME", std::filesystem::temp_directory_path().string()}});
  RunRankProcesses(3, [&](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    if (rank == 2) {
      constexpr uid_t kNobodyElse = 54321;
      const rlim_t most = one.most + (one.beyond_use ? AddressSpaceNow() : 0);
      const rlimit limit = {most, most};
      ASSERT_EQ(setrlimit(one.resource, &limit), 0);
      if (getuid() == 0) {
        ASSERT_EQ(setuid(kNobodyElse), 0);
      }
    }
    const double start_s = NowS();
    ncclComm_t comm = nullptr;
    EXPECT_NE(ncclCommInitRank(&comm, 3, id, rank), ncclSuccess);
    EXPECT_LT(NowS() - start_s, kSoonS);
    const std::string error = ncclGetLastError(nullptr);
    EXPECT_THAT(error, HasSubstr(one.said));
    if (rank != 2) {
      EXPECT_THAT(error, HasSubstr("rank 2 ("));
    }
    board.Meet(0, 3);  // The root lives until the last rank has heard of the failure.
  });
}

INSTANTIATE_TEST_SUITE_P(
    Limits, LimitedRankTest,
    ::testing::Values(LimitCase{"Threads", RLIMIT_NPROC, 1, false, "ulimit -u"},
                      // Less than the stack of a thread is left.
                      LimitCase{"AddressSpace", RLIMIT_AS, rlim_t{4} << 20, true, "ulimit -v"}),
    [](const auto& instance) { return std::string(instance.param.name); });

// ---------------------------------------------------------------------------------------------------------------------
// Two communicators, and a pause of the whole job

TEST(TwoCommunicatorsTest, UsedInOppositeOrderAreBothNamed) {
  const Environment environment(Environment::Settings{{"TUTTI_TIMEOUT_S", "3"}});
  RunRankProcesses(2, [](int rank, Board& board) {
    ncclComm_t first = Join(rank, 2, board), second = nullptr;
    ASSERT_NE(first, nullptr);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "tensors";
    ASSERT_NCCL(ncclCommSplit(first, 0, rank, &second, &config));
    EXPECT_NCCL(Reduce(first));
    EXPECT_NCCL(Reduce(second));
    EXPECT_EQ(Reduce(rank == 0 ? first : second), ncclTimeout);
    const std::string error = ncclGetLastError(nullptr);
    EXPECT_THAT(error, HasSubstr("its process waits in communicator "));
    EXPECT_THAT(error, HasSubstr("communicator tensors ("));
    EXPECT_NCCL(ncclCommAbort(second));
    EXPECT_NCCL(ncclCommAbort(first));
  });
}

enum class Waiting { kInit, kOperation, kSplit };

const char* NameOf(Waiting waiting) {
  return waiting == Waiting::kInit ? "Init" : waiting == Waiting::kSplit ? "Split" : "Operation";
}

class PauseTest : public ::testing::TestWithParam<Waiting> {};

// All ranks but one wait in a call when the whole job is stopped for longer than the time-out. The
// late rank comes when the job goes on.
TEST_P(PauseTest, OfTheWholeJobAccusesNobody) {
  constexpr auto kPause = std::chrono::milliseconds(3500);
  constexpr int kLate = 2, kAll = 3;
  const Environment environment(
      Environment::Settings{{"TUTTI_TIMEOUT_S", "3"}, {"TUTTI_INIT_TIMEOUT_S", "3"}});
  RankProcesses processes(kAll, [waiting_in = GetParam()](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    ncclComm_t comm = nullptr, child = nullptr;
    if (waiting_in != Waiting::kInit) {
      ASSERT_NCCL(ncclCommInitRank(&comm, kAll, id, rank));
    }
    std::thread watcher([&board, rank, waiting = ThisThread()] {
      if (rank != kLate) {
        EXPECT_TRUE(AwaitAsleep(waiting));
      }
      board.Add(kInCall, 1);
    });
    if (rank == kLate) {
      ASSERT_TRUE(board.Await(kStopped, 1));
    }
    switch (waiting_in) {
      case Waiting::kInit:
        EXPECT_NCCL(ncclCommInitRank(&comm, kAll, id, rank));
        break;
      case Waiting::kOperation:
        EXPECT_NCCL(Reduce(comm));
        break;
      case Waiting::kSplit:
        EXPECT_NCCL(ncclCommSplit(comm, 0, rank, &child, nullptr));
        break;
    }
    watcher.join();
    EXPECT_NCCL(ncclCommDestroy(child));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  ASSERT_TRUE(processes.board().Await(kInCall, kAll));
  for (int rank = 0; rank < kAll; ++rank) processes.Signal(rank, SIGSTOP);
  std::this_thread::sleep_for(kPause);
  for (int rank = 0; rank < kAll; ++rank) processes.Signal(rank, SIGCONT);
  processes.board().Set(kStopped, 1);
  processes.Wait();
}

INSTANTIATE_TEST_SUITE_P(Calls, PauseTest,
                         ::testing::Values(Waiting::kInit, Waiting::kOperation, Waiting::kSplit),
                         [](const auto& instance) { return std::string(NameOf(instance.param)); });

}  // namespace
}  // namespace tutti::testing
