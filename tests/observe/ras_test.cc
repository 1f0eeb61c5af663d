// Jobs of four ranks as clients of NCCL's RAS see them: by the program `ncclras`, and over the
// socket. The rules of two clients judge the answers: those of Ray Train's hang detector and of
// SGLang's health check (docs/ras.md).

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/testing/thread_ranks.h"
#include "bootstrap/wire.h"
#include "conformance/processes.h"
#include "observe/board_folder.h"
#include "sys/tcp.h"

namespace tutti::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kCulprit = 2;
constexpr int kCalls = 3;  // of AllReduce, before anything else happens
constexpr int kRounds = kFirstFreeMark + 1;

ncclResult_t AllReduce(ncclComm_t comm) {
  float value = 1;
  return ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr);
}

void WaitForEver() {
  for (;;) pause();
}

// ---------------------------------------------------------------------------------------------------------------------
// The rules of the clients

// Ray looks at the counts of each communicator's ranks by operation, and at the states of the
// ranks. A key that is missing makes Ray drop the answer.
struct RayReport {
  std::map<std::string, std::map<int, std::map<std::string, int64_t>>> counts;
  std::map<std::string, std::map<int, std::string>> states;
};

RayReport ReadAsRay(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  EXPECT_TRUE(json.at("timestamp").is_string());
  RayReport report;
  for (const nlohmann::json& communicator : json.at("communicators")) {
    const std::string hash = communicator.at("hash");
    for (const nlohmann::json& rank : communicator.at("ranks")) {
      const int number = rank.at("rank");
      report.counts[hash][number] = rank.at("collective_counts");
      const nlohmann::json& status = rank.at("status");
      report.states[hash][number] = status.at("abort_flag").get<bool>()        ? "ABORT"
                                    : status.at("finalize_called").get<bool>() ? "FINALIZE"
                                    : status.at("destroy_flag").get<bool>()    ? "FINALIZE"
                                    : status.at("init_state") == 0             ? "RUNNING"
                                                                               : "INIT";
    }
  }
  return report;
}

// A communicator hangs where the counts of an operation differ between ranks that all run, and no
// count has changed since the poll before.
std::set<std::string> HangsForRay(const RayReport& before, const RayReport& now) {
  std::set<std::string> hangs;
  for (const auto& [hash, ranks] : now.counts) {
    std::map<std::string, std::set<int64_t>> by_operation;
    for (const auto& [rank, counts] : ranks)
      for (const auto& [operation, count] : counts) by_operation[operation].insert(count);
    const bool differ = std::any_of(by_operation.begin(), by_operation.end(),
                                    [](const auto& one) { return one.second.size() > 1; });
    const auto& states = now.states.at(hash);
    const bool all_run = std::all_of(states.begin(), states.end(),
                                     [](const auto& one) { return one.second == "RUNNING"; });
    const auto earlier = before.counts.find(hash);
    if (differ && all_run && earlier != before.counts.end() && earlier->second == ranks)
      hangs.insert(hash);
  }
  return hangs;
}

// SGLang's verdict about a single answer: the worst of all communicators.
std::string VerdictOfSglang(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  int worst = 0;
  for (const nlohmann::json& communicator : json.at("communicators")) {
    std::map<std::string, std::set<int64_t>> counts;
    for (const nlohmann::json& rank : communicator.at("ranks")) {
      if (rank.at("status").at("async_error") != 0) worst = std::max(worst, 2);
      for (const auto& [operation, count] : rank.at("collective_counts").items())
        if (count != 0) counts[operation].insert(count.get<int64_t>());
    }
    for (const auto& [operation, different] : counts)
      if (different.size() > 1) worst = std::max(worst, 1);
    if (communicator.at("missing_ranks_count") > 0) worst = std::max(worst, 1);
    for (const nlohmann::json& rank : communicator.at("missing_ranks"))
      if (rank.at("status").at("considered_dead")) worst = 3;
  }
  return std::array{"HEALTHY", "SUSPECT", "ERROR", "DEAD"}[static_cast<size_t>(worst)];
}

// ---------------------------------------------------------------------------------------------------------------------
// Jobs and clients

class RasJobTest : public ::testing::Test {
 protected:
  std::string Ncclras(const std::string& options) const {
    const Outcome outcome =
        RunCommand("(" TUTTI_NCCLRAS " -h 127.0.0.1 -p " + std::to_string(address_.port) + " " +
                   options + " 2>/dev/null)");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome.output;
  }
  std::string Json() const { return Ncclras("-f json -t 8"); }

  // Asks over the socket, as SGLang does.
  std::string Poll() const {
    const WaitLimits limits = {.deadline = Deadline::AfterSeconds(30)};
    const Result<UniqueFd> fd = Connect(address_, limits);
    if (!fd.ok() || !SendAll(fd->get(), AsBytes("SET FORMAT json\nSTATUS\n"), limits).ok())
      return "(no connection)";
    std::string all;
    std::array<std::byte, 65536> part;
    for (;;) {
      if (!WaitReady(fd->get(), POLLIN, limits, "the test").ok()) return "(late)";
      const Result<int64_t> got = TryRecv(fd->get(), part);
      if (!got.ok()) return "(broken)";
      if (*got == kEndOfStream) break;
      all += AsText(std::span(part).first(static_cast<size_t>(*got)));
    }
    return all.substr(std::min(all.size(), all.find('{')));
  }

  // Starts a job whose ranks make kCalls calls, and then run `then`.
  void Start(const std::function<void(int rank, ncclComm_t comm, Board& board)>& then,
             const std::function<void(int rank)>& prepare = {}) {
    ranks_.emplace(kRanks, [=](int rank, Board& board) {
      if (prepare) prepare(rank);
      ncclComm_t comm = Join(rank, kRanks, board);
      for (int i = 0; i < kCalls; ++i) EXPECT_NCCL(AllReduce(comm));
      board.Meet(kFirstFreeMark, kRanks + 1);
      then(rank, comm, board);
      WaitForEver();
    });
    ranks_->board().Meet(kFirstFreeMark, kRanks + 1);
  }

  // The ranks of each half see the boards of their half only, as on two hosts.
  void StartOnTwoHosts(const char* timeout_factor) {
    const std::string folder = getenv("TUTTI_OBSERVE_DIR");
    Start([](int, ncclComm_t, Board&) {},
          [=](int rank) {
            const std::string own = folder + (rank < 2 ? "/a" : "/b");
            setenv("TUTTI_OBSERVE_DIR", own.c_str(), 1);
            setenv("NCCL_RAS_TIMEOUT_FACTOR", timeout_factor, 1);
          });
  }

  const SocketAddress address_ = *ParseSocketAddress("127.0.0.1:" + std::to_string(FreePort()));
  const BoardFolder boards_{{{"NCCL_RAS_ADDR", address_.ToString()}}};
  std::optional<RankProcesses> ranks_;
};

void Nothing(int, ncclComm_t, Board&) {}

TEST_F(RasJobTest, AHealthyJobIsHealthyForAll) {
  Start(Nothing);
  const std::string first = Json(), second = Json();
  const RayReport report = ReadAsRay(second);
  EXPECT_TRUE(HangsForRay(ReadAsRay(first), report).empty());
  EXPECT_EQ(VerdictOfSglang(second), "HEALTHY");
  ASSERT_EQ(report.counts.size(), 1u);
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(report.counts.begin()->second.at(rank).at("AllReduce"), kCalls);
  EXPECT_THAT(Ncclras("-v"), HasSubstr("         4         4   RUNNING      OK\n"));
}

TEST_F(RasJobTest, AHungRankIsFoundByTheRulesOfItsClients) {
  Start([](int rank, ncclComm_t comm, Board&) {
    if (rank != kCulprit) AllReduce(comm);
  });
  ASSERT_TRUE(boards_.AwaitHeldUp(kRanks - 1));
  const std::string first = Json(), second = Json();
  EXPECT_EQ(HangsForRay(ReadAsRay(first), ReadAsRay(second)).size(), 1u);
  EXPECT_EQ(VerdictOfSglang(second), "SUSPECT");
  EXPECT_THAT(Ncclras(""), HasSubstr("  3 ranks have launched up to operation 4\n  Rank 2 has "
                                     "launched up to operation 3 -- GPU "));
}

TEST_F(RasJobTest, AStoppedProcessIsShownByItsBoard) {
  Start([](int rank, ncclComm_t comm, Board&) {
    if (rank != kCulprit) AllReduce(comm);
  });
  ASSERT_TRUE(boards_.AwaitHeldUp(kRanks - 1));
  ranks_->Signal(kCulprit, SIGSTOP);
  // Some of the connections go to the stopped process, and the program then tries again.
  for (int i = 0; i < 8; ++i) {
    const RayReport report = ReadAsRay(Json());
    ASSERT_EQ(report.counts.size(), 1u);
    EXPECT_EQ(report.counts.begin()->second.at(kCulprit).at("AllReduce"), kCalls);
  }
}

TEST_F(RasJobTest, ADeadRankIsToldAtOnce) {
  Start([](int, ncclComm_t comm, Board&) { AllReduce(comm); });
  ranks_->Signal(kCulprit, SIGKILL);
  ranks_->AwaitEnd(kCulprit);
  const std::string text = Poll();
  EXPECT_EQ(VerdictOfSglang(text), "DEAD");
  const nlohmann::json communicator = nlohmann::json::parse(text).at("communicators").at(0);
  EXPECT_EQ(communicator.at("ranks_count"), kRanks - 1);
  EXPECT_EQ(communicator.at("missing_ranks").at(0).at("rank"), kCulprit);
  EXPECT_EQ(communicator.at("missing_ranks").at(0).at("pid"), ranks_->pid(kCulprit));
  EXPECT_THAT(Ncclras(""), HasSubstr("DEAD\n  1 job process is considered dead"));
}

// An answer may take its time on a busy machine.
TEST_F(RasJobTest, RanksOfOtherHostsAreAskedOverTheLinks) {
  StartOnTwoHosts("20");
  for (int i = 0; i < 8; ++i) {
    const std::string text = Poll();
    EXPECT_EQ(VerdictOfSglang(text), "HEALTHY");
    EXPECT_EQ(ReadAsRay(text).counts.begin()->second.size(), size_t{kRanks});
  }
  // A process that is stopped cannot tell; the other process of its half does.
  ranks_->Signal(3, SIGSTOP);
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(ReadAsRay(Json()).counts.begin()->second.size(), size_t{kRanks});
}

TEST_F(RasJobTest, RanksOfAHostThatDoesNotAnswerAreMissing) {
  StartOnTwoHosts("1");
  ranks_->Signal(3, SIGSTOP);
  ranks_->Signal(2, SIGSTOP);
  const nlohmann::json communicator = nlohmann::json::parse(Json()).at("communicators").at(0);
  EXPECT_EQ(communicator.at("ranks_count"), 2);
  EXPECT_EQ(communicator.at("missing_ranks").at(1).at("status"),
            (nlohmann::json{{"unresponsive", true}, {"considered_dead", false}}));
}

TEST_F(RasJobTest, PollsWhileCommunicatorsComeAndGo) {
  const char* const wanted = getenv("TUTTI_TEST_RAS_POLLS");
  const int num_polls = wanted != nullptr ? atoi(wanted) : 300;
  Start([](int rank, ncclComm_t comm, Board& board) {
    // The end of the test kills one rank after another, and the calls of the others then fail.
    for (ncclComm_t child = nullptr;; board.Add(kRounds, 1)) {
      if (ncclCommSplit(comm, rank % 2, rank, &child, nullptr) != ncclSuccess) return;
      if (AllReduce(child) != ncclSuccess || AllReduce(comm) != ncclSuccess) return;
      if (ncclCommDestroy(child) != ncclSuccess) return;
    }
  });
  for (int i = 0; i < num_polls; ++i) {
    const RayReport report = ReadAsRay(Poll());
    EXPECT_GE(report.counts.size(), 1u);
    const bool has_all = std::any_of(report.counts.begin(), report.counts.end(),
                                     [](const auto& one) { return one.second.size() == kRanks; });
    ASSERT_TRUE(has_all) << "in poll " << i;
  }
  EXPECT_TRUE(ranks_->board().Await(kRounds, ranks_->board().Get(kRounds) + 2 * kRanks));
}

TEST_F(RasJobTest, TheProgramSaysWhatIsWrong) {
  const std::string program = TUTTI_NCCLRAS;
  const Outcome nobody = RunCommand(program + " -p " + std::to_string(address_.port));
  EXPECT_EQ(nobody.status, 1);
  EXPECT_THAT(nobody.output, HasSubstr("Connection refused"));
  EXPECT_THAT(RunCommand(program + " -f xml").output, HasSubstr("Invalid format: xml"));
  EXPECT_THAT(RunCommand(program + " -t 5s").output, HasSubstr("Invalid timeout: 5s"));
  EXPECT_EQ(RunCommand(program + " -q").status, 1);
  EXPECT_EQ(RunCommand(program + " --help").status, 0);
}

}  // namespace
}  // namespace tutti::testing
