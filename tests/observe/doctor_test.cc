// Jobs of four ranks, each held up in another way: `tutti doctor` finds the class and the rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "conformance/processes.h"
#include "observe/board_folder.h"

namespace tutti::testing {
namespace {

constexpr int kRanks = 4;
constexpr int kCulprit = 2;
constexpr int kInHandler = kFirstFreeMark;
constexpr int kOthersMayCome = kFirstFreeMark + 1;
constexpr int kReturned = kFirstFreeMark + 2;

// The board for the handler of a signal.
Board* handler_board = nullptr;

ncclResult_t AllReduce(ncclComm_t comm, size_t count = 2) {
  std::vector<float> data(count);
  return ncclAllReduce(data.data(), data.data(), count, ncclFloat32, ncclSum, comm, nullptr);
}

// A way to hold a job up, from the first three collectives on.
struct Case {
  const char* name;
  const char* finding;
  std::vector<int> culprits;
  // The part of a rank. What blocks stays blocked until the processes are killed.
  std::function<void(int rank, ncclComm_t comm, Board& board)> run;
  // How many ranks wait, or have failed, before the doctor is asked.
  int held_up = kRanks - 1;
  // The part of the test before the doctor is asked.
  std::function<void(RankProcesses& ranks)> act = [](RankProcesses&) {};
  int held_up_after = 0;  // as held_up, after act

  // For the names of tests.
  friend void PrintTo(const Case& tested, std::ostream* out) { *out << tested.name; }
};

void WaitForEver() {
  for (;;) pause();
}

// Runs all ranks but the culprit in `call`.
std::function<void(int, ncclComm_t, Board&)> WithoutCulprit(std::function<void(ncclComm_t)> call) {
  return [call](int rank, ncclComm_t comm, Board&) {
    if (rank != kCulprit) call(comm);
  };
}

void RunSplit(ncclComm_t comm) {
  ncclComm_t child = nullptr;
  ncclCommSplit(comm, 0, 0, &child, nullptr);
}

void ReceiveFromCulprit(int rank, ncclComm_t comm, Board&) {
  float value = 0;
  if (rank == 0) ncclRecv(&value, 1, ncclFloat32, kCulprit, comm, nullptr);
}

// The culprit enters alone, and its thread is caught in a handler behind its own data. The others
// leave this collective and wait in the next.
void StayInside(int rank, ncclComm_t comm, Board& board) {
  if (rank == kCulprit) {
    handler_board = &board;
    struct sigaction action = {};
    action.sa_handler = [](int) {
      handler_board->Set(kInHandler, 1);
      WaitForEver();
    };
    sigaction(SIGUSR2, &action, nullptr);
  } else if (!board.Await(kOthersMayCome, 1)) {
    return;
  }
  AllReduce(comm);
  AllReduce(comm);
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {"Healthy", "nothing-wrong", {}, [](int, ncclComm_t, Board&) {}, 0},
      {"NeverEntered", "never-entered", {kCulprit}, WithoutCulprit([](ncclComm_t comm) {
         AllReduce(comm);
       })},
      {"NotInSplit", "never-entered", {kCulprit}, WithoutCulprit(RunSplit)},
      {"NotSending", "never-entered", {kCulprit}, ReceiveFromCulprit, 1},
  };
  // Two ranks find the mismatch, and the others come when the communicator has stopped.
  Case other_count = {
      "OtherCount", "other-signature", {kCulprit}, [](int rank, ncclComm_t comm, Board& board) {
        AllReduce(comm, rank == kCulprit ? 3 : 2);
        board.Add(kReturned, 1);
      }};
  other_count.held_up = kRanks;
  other_count.act = [](RankProcesses& ranks) {
    ASSERT_TRUE(ranks.board().Await(kReturned, kRanks));
  };
  cases.push_back(other_count);
  Case stopped = {
      "Stopped", "stopped", {kCulprit}, WithoutCulprit([](ncclComm_t comm) { AllReduce(comm); })};
  stopped.act = [](RankProcesses& ranks) { ranks.Signal(kCulprit, SIGSTOP); };
  cases.push_back(stopped);
  Case dead = {
      "Dead", "dead", {kCulprit}, WithoutCulprit([](ncclComm_t comm) { AllReduce(comm); })};
  dead.act = [](RankProcesses& ranks) {
    ranks.Signal(kCulprit, SIGKILL);
    ranks.AwaitEnd(kCulprit);
  };
  cases.push_back(dead);
  Case all_dead = {"AllDead", "dead", {0, 1, 2, 3}, [](int, ncclComm_t, Board&) {}, 0};
  all_dead.act = [](RankProcesses& ranks) {
    for (int rank = 0; rank < kRanks; ++rank) ranks.Signal(rank, SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) ranks.AwaitEnd(rank);
  };
  cases.push_back(all_dead);
  Case inside = {"NotLeft", "not-left", {kCulprit}, StayInside, 1};
  inside.act = [](RankProcesses& ranks) {
    ranks.Signal(kCulprit, SIGUSR2);
    ASSERT_TRUE(ranks.board().Await(kInHandler, 1));
    ranks.board().Set(kOthersMayCome, 1);
  };
  inside.held_up_after = kRanks;
  cases.push_back(inside);
  return cases;
}

Outcome RunTutti(const std::string& arguments) { return RunCommand(TUTTI_PROGRAM " " + arguments); }

class DoctorTest : public ::testing::TestWithParam<Case> {};

TEST_P(DoctorTest, FindsTheClassAndTheRank) {
  const Case& test = GetParam();
  const BoardFolder boards;
  RankProcesses ranks(kRanks, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    for (int i = 0; i < 3; ++i) EXPECT_NCCL(AllReduce(comm));
    board.Meet(kFirstFreeMark, kRanks + 1);
    test.run(rank, comm, board);
    WaitForEver();
  });
  ranks.board().Meet(kFirstFreeMark, kRanks + 1);
  ASSERT_TRUE(boards.AwaitHeldUp(test.held_up));
  test.act(ranks);
  ASSERT_TRUE(boards.AwaitHeldUp(test.held_up_after));
  const std::string pid = std::to_string(ranks.pid(0));
  const Outcome outcome = RunTutti("doctor --json --patience 0.5 " + pid);
  const bool healthy = test.culprits.empty();
  ASSERT_EQ(outcome.status, healthy ? 0 : 1) << outcome.output;
  const nlohmann::json json = nlohmann::json::parse(outcome.output);
  const nlohmann::json& found = json.at("jobs").at(0).at("communicators").at(0);
  EXPECT_EQ(found.at("finding"), test.finding) << outcome.output;
  EXPECT_EQ(found.at("culprits"), test.culprits) << outcome.output;
  for (const int culprit : test.culprits)
    EXPECT_THAT(found.at("sentence").get<std::string>(),
                ::testing::HasSubstr("pid " + std::to_string(ranks.pid(culprit))));
  for (const char* const command :
       {"ps", "ps --json", "stat --interval 0.01 ", "doctor --patience 0.5 "}) {
    const bool takes_job = std::string(command).ends_with(' ');
    const Outcome shown = RunTutti(command + (takes_job ? pid : ""));
    EXPECT_EQ(shown.status, command[0] == 'd' && !healthy ? 1 : 0) << shown.output;
    EXPECT_THAT(shown.output, ::testing::HasSubstr(pid));
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, DoctorTest, ::testing::ValuesIn(Cases()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(DoctorOfMakingTest, NamesTheRankThatDoesNotCome) {
  const BoardFolder boards;
  RankProcesses ranks(kRanks, [&](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    ncclComm_t comm = nullptr;
    if (rank != kCulprit) ncclCommInitRank(&comm, kRanks, id, rank);
    WaitForEver();
  });
  ASSERT_TRUE(boards.AwaitHeldUp(kRanks - 1));
  const Outcome outcome = RunTutti("doctor --json --patience 0.5 " + std::to_string(ranks.pid(0)));
  ASSERT_EQ(outcome.status, 1) << outcome.output;
  const nlohmann::json json = nlohmann::json::parse(outcome.output);
  const nlohmann::json& found = json.at("jobs").at(0).at("communicators").at(0);
  EXPECT_EQ(found.at("finding"), "never-entered");
  EXPECT_EQ(found.at("culprits"), std::vector<int>{kCulprit});
}

// Python reads the files, and PyTorch's own tool names the rank that the collective misses.
TEST(FlightRecorderTest, WritesFilesForPyTorch) {
  const BoardFolder boards;
  RankProcesses ranks(kRanks, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    for (int i = 0; i < 3; ++i) EXPECT_NCCL(AllReduce(comm));
    board.Meet(kFirstFreeMark, kRanks + 1);
    if (rank != kCulprit) AllReduce(comm);
    WaitForEver();
  });
  ranks.board().Meet(kFirstFreeMark, kRanks + 1);
  ASSERT_TRUE(boards.AwaitHeldUp(kRanks - 1));
  const std::string folder = boards.path() + "/flight";
  const Outcome wrote = RunTutti("flight-recorder " + std::to_string(ranks.pid(0)) + " " + folder);
  ASSERT_EQ(wrote.status, 0) << wrote.output;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Outcome read = RunCommand(
        "python3 -c 'import json, pickle, sys; print(json.dumps(pickle.load(open(sys.argv[1], "
        "\"rb\"))))' " +
        folder + "/comm_lib_trace_rank_" + std::to_string(rank));
    ASSERT_EQ(read.status, 0) << read.output;
    const nlohmann::json file = nlohmann::json::parse(read.output);
    ASSERT_EQ(file.at("entries").size(), rank == kCulprit ? 3 : 4);
    const nlohmann::json& last = file.at("entries").back();
    EXPECT_EQ(last.at("profiling_name"), "nccl:all_reduce");
    EXPECT_EQ(last.at("input_sizes"), nlohmann::json::parse("[[2]]"));
    EXPECT_EQ(last.at("state"), rank == kCulprit ? "completed" : "started");
    EXPECT_EQ(file.at("pg_config").front().at("ranks"), "[0,1,2,3]");
  }
  if (!std::filesystem::exists(NEW_TORCH))
    GTEST_SKIP() << "PyTorch's tool is not there: scripts/setup test";
  const Outcome traced = RunCommand(
      "PYTHONPATH=" NEW_TORCH " python3 -m torch.distributed.flight_recorder.fr_trace " + folder);
  EXPECT_EQ(traced.status, 0);
  EXPECT_THAT(traced.output, ::testing::HasSubstr("missing ranks: {" + std::to_string(kCulprit)));
}

TEST(DoctorOfNothingTest, SaysSo) {
  const BoardFolder boards;
  const Outcome all = RunTutti("doctor");
  EXPECT_EQ(all.status, 0);
  EXPECT_THAT(all.output, ::testing::HasSubstr("no job of this user runs"));
  EXPECT_EQ(RunTutti("doctor 1").status, 2);
  EXPECT_EQ(RunTutti("stat 1").status, 2);
}

}  // namespace
}  // namespace tutti::testing
