// `tutti top` beside a job: pictures as text and as JSON, and on a terminal.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/processes.h"
#include "observe/board_folder.h"

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;
constexpr int kLate = 1;
constexpr int kStarted = kFirstFreeMark;
constexpr int kOver = kFirstFreeMark + 1;
constexpr size_t kCount = 1000;

// A job that runs collectives, until the mark kOver.
class TopTest : public ::testing::Test {
 protected:
  TopTest()
      : ranks_(kRanks, [](int rank, Board& board) {
          ncclComm_t comm = Join(rank, kRanks, board);
          std::vector<float> data(kCount);
          do {
            data[0] = rank == 0 && board.Get(kOver) == 0 ? 1 : 0;
            EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclFloat32, ncclSum, comm,
                                      nullptr));
            board.Set(kStarted, 1);
          } while (data[0] > 0);
          // The job now waits for a rank.
          if (rank != kLate)
            ncclAllReduce(data.data(), data.data(), 1, ncclFloat32, ncclSum, comm, nullptr);
          for (;;) pause();
        }) {}

  void SetUp() override { ASSERT_TRUE(ranks_.board().Await(kStarted, 1)); }
  [[nodiscard]] bool Stall() {
    ranks_.board().Set(kOver, 1);
    return boards_.AwaitHeldUp(kRanks - 1);
  }
  static Outcome Top(const std::string& arguments) {
    return RunCommand(TUTTI_PROGRAM " top " + arguments);
  }

  const BoardFolder boards_;
  RankProcesses ranks_;
};

TEST_F(TopTest, PrintsAnObjectForEachPicture) {
  const Outcome outcome = Top("--json -n 3 -d 0.1");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  std::istringstream lines(outcome.output);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_TRUE(json.at("links").is_null());
    ASSERT_EQ(json.at("jobs").size(), 1);
    const nlohmann::json& communicator = json.at("jobs").at(0).at("communicators").at(0);
    const double rate = communicator.at("collectives_per_s");
    // All collectives have the same length.
    EXPECT_NEAR(communicator.at("collective_bytes_per_s").get<double>(), rate * kCount * 4,
                rate * kCount * 4 * 1e-6);
    ASSERT_EQ(communicator.at("ranks").size(), kRanks);
    for (const nlohmann::json& rank : communicator.at("ranks")) {
      EXPECT_GE(rank.at("collectives_per_s"), 0);
      EXPECT_LE(rank.at("waiting_share"), 1);
    }
  }
  EXPECT_EQ(count, 3);
}

TEST_F(TopTest, ShowsThatAllRanksGoOn) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  int going = 0;
  do {
    const Outcome outcome = Top("--json --once -d 0.3");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const nlohmann::json json = nlohmann::json::parse(outcome.output);
    const nlohmann::json& ranks = json.at("jobs").at(0).at("communicators").at(0).at("ranks");
    going = static_cast<int>(std::ranges::count_if(
        ranks, [](const nlohmann::json& rank) { return rank.at("collectives_per_s") > 0; }));
  } while (going != kRanks && std::chrono::steady_clock::now() < until);
  EXPECT_EQ(going, kRanks);
}

TEST_F(TopTest, ShowsWhoIsBehind) {
  ASSERT_TRUE(Stall());
  // A rank counts as held up after two seconds.
  nlohmann::json found;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  do {
    const Outcome outcome = Top("--json --once -d 0.3");
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    found = nlohmann::json::parse(outcome.output).at("jobs").at(0).at("communicators").at(0);
  } while (found.at("finding") != "never-entered" && std::chrono::steady_clock::now() < until);
  EXPECT_EQ(found.at("finding"), "never-entered");
  EXPECT_EQ(found.at("culprits"), std::vector{kLate});
  EXPECT_EQ(found.at("collectives_per_s"), 0);
  for (const nlohmann::json& rank : found.at("ranks"))
    EXPECT_EQ(rank.at("collectives_behind"), rank.at("rank") == kLate ? 1 : 0);
  const Outcome text = Top("--once -d 0.3");
  EXPECT_THAT(text.output,
              AllOf(HasSubstr("never-entered"), HasSubstr("has not entered collective number"),
                    HasSubstr("  >     1 "), HasSubstr("boards have no counters of links"),
                    Not(HasSubstr("\033"))));
}

// Returns all that the program writes, until the text comes; empty where the text does not come in
// half a minute.
std::string ReadUntil(int terminal, const std::string& text) {
  std::string all;
  std::array<char, 4096> bytes;
  for (;;) {
    pollfd readable = {terminal, POLLIN, 0};
    if (poll(&readable, 1, 30'000) != 1) return "";
    const ssize_t got = read(terminal, bytes.data(), bytes.size());
    if (got <= 0) return "";
    all.append(bytes.data(), static_cast<size_t>(got));
    if (all.find(text) != std::string::npos) return all;
  }
}

// Starts `tutti top` on a terminal of so many columns.
pid_t StartOnTerminal(unsigned short columns, int& terminal) {
  const winsize size = {.ws_row = 5, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
  if (pid == 0) {
    execl(TUTTI_PROGRAM, TUTTI_PROGRAM, "top", "-d", "0.1", nullptr);
    _exit(127);
  }
  return pid;
}

// Presses the key q and awaits the end of the program.
void EndByQ(pid_t pid, int terminal) {
  ASSERT_EQ(write(terminal, "q", 1), 1);
  EXPECT_NE(ReadUntil(terminal, "\033[?1049l"), "") << "the terminal is not given back";
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  close(terminal);
}

TEST_F(TopTest, ShowsPicturesOnATerminalUntilTheKeyQ) {
  int terminal = -1;
  const pid_t pid = StartOnTerminal(60, terminal);
  ASSERT_GT(pid, 0);
  // Two pictures, of four lines of at most sixty bytes each.
  const std::string first = ReadUntil(terminal, "\033[J");
  const std::string second = ReadUntil(terminal, "\033[J");
  EXPECT_THAT(first, HasSubstr("tutti top - "));
  EXPECT_THAT(second, AllOf(HasSubstr("\033[H"), HasSubstr("(observe_processes_test), 3 p")));
  EXPECT_THAT(second, Not(HasSubstr("RANK")));
  EndByQ(pid, terminal);
}

TEST(TopOfNothingTest, GivesTheTerminalBackWhileStopped) {
  const BoardFolder boards;
  int terminal = -1, status = -1;
  const pid_t pid = StartOnTerminal(60, terminal);
  ASSERT_GT(pid, 0);
  ASSERT_NE(ReadUntil(terminal, "\033[J"), "");
  ASSERT_EQ(write(terminal, "\x1a", 1), 1);  // ^Z
  EXPECT_NE(ReadUntil(terminal, "\033[?1049l"), "") << "the terminal is not given back";
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  EXPECT_TRUE(WIFSTOPPED(status));
  kill(pid, SIGCONT);
  EXPECT_NE(ReadUntil(terminal, "\033[?1049h"), "");
  EndByQ(pid, terminal);
}

TEST(TopOfNothingTest, EndsByQuitAndGivesTheTerminalBack) {
  const BoardFolder boards;
  int terminal = -1, status = -1;
  const pid_t pid = StartOnTerminal(60, terminal);
  ASSERT_GT(pid, 0);
  ASSERT_NE(ReadUntil(terminal, "\033[J"), "");
  ASSERT_EQ(write(terminal, "\x1c", 1), 1);  // the key ^\ of SIGQUIT
  EXPECT_NE(ReadUntil(terminal, "\033[?1049l"), "") << "the terminal is not given back";
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  close(terminal);
}

TEST(TopOfNothingTest, ShowsAPictureOnATerminalOfUnknownWidth) {
  const BoardFolder boards;
  int terminal = -1;
  const pid_t pid = StartOnTerminal(0, terminal);
  ASSERT_GT(pid, 0);
  EXPECT_THAT(ReadUntil(terminal, "\033[J"), HasSubstr("0 jobs, 0 ranks here; q ends"));
  EndByQ(pid, terminal);
}

TEST(TopOfNothingTest, ShowsAnEmptyPicture) {
  const BoardFolder boards;
  const Outcome outcome = RunCommand(TUTTI_PROGRAM " top --once -d 0.1");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("0 jobs, 0 ranks here\n"));
  EXPECT_EQ(RunCommand(TUTTI_PROGRAM " top -d 0").status, 2);
}

}  // namespace
}  // namespace tutti::testing
