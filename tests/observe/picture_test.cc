// The picture of a process in its log: on a signal, and after a time-out.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "conformance/processes.h"

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kOver = kFirstFreeMark;

class PictureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "pictures.XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Environment::Settings With(Environment::Settings settings) const {
    settings.emplace_back("NCCL_DEBUG_FILE", Log());
    settings.emplace_back("TUTTI_OBSERVE_DIR", folder_);
    return settings;
  }
  std::string Log() const { return folder_ + "/log"; }
  std::string LogText() const {
    std::ifstream file(Log());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Waits until the log has the text.
  [[nodiscard]] bool AwaitInLog(const std::string& text) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (LogText().find(text) == std::string::npos) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::string folder_;
};

void AllReduce(ncclComm_t comm, ncclResult_t expected = ncclSuccess) {
  float value = 1;
  EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr), expected);
}

TEST_F(PictureTest, IsWrittenOnTheSignalWhateverTheLogShows) {
  for (const int number : {SIGUSR1, SIGUSR2}) {
    const std::string name = number == SIGUSR1 ? "SIGUSR1" : "SIGUSR2";
    const Environment environment(With({{"TUTTI_OBSERVE_SIGNAL", name}}));
    RunRankProcesses(2, [&](int rank, Board& board) {
      signal(number, SIG_DFL);  // RankProcesses has a handler of SIGUSR2.
      ncclComm_t comm = Join(rank, 2, board);
      for (int i = 0; i < 70; ++i) AllReduce(comm);
      if (rank == 0) {
        raise(number);
        EXPECT_TRUE(AwaitInLog("numbers 7 to 70: AllReduce(count 1, float32, sum)"));
        EXPECT_THAT(LogText(), AllOf(HasSubstr("a signal asks: the state of this process, 1 comm"),
                                     HasSubstr("rank 0 (host"), HasSubstr("in operation for")));
        board.Set(kOver, 1);
      }
      ASSERT_TRUE(board.Await(kOver, 1));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
    std::filesystem::remove(Log());
  }
}

std::atomic<int> num_signals = 0;

TEST_F(PictureTest, ASignalOfTheProgramsOwnIsLeftAlone) {
  const Environment environment(With({}));
  RunRankProcesses(1, [&](int rank, Board& board) {
    struct sigaction action = {};
    action.sa_handler = [](int) { ++num_signals; };
    sigaction(SIGUSR1, &action, nullptr);
    ncclComm_t comm = Join(rank, 1, board);
    raise(SIGUSR1);
    EXPECT_EQ(num_signals, 1);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_THAT(LogText(), Not(HasSubstr("a signal asks")));
}

TEST_F(PictureTest, TheSettingLeavesTheSignalAsItWas) {
  const Environment environment(With({{"TUTTI_OBSERVE_SIGNAL", "NONE"}}));
  RunRankProcesses(1, [](int rank, Board& board) {
    ncclComm_t comm = Join(rank, 1, board);
    struct sigaction action = {};
    ASSERT_EQ(sigaction(SIGUSR1, nullptr, &action), 0);
    EXPECT_EQ(action.sa_handler, SIG_DFL);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(PictureTest, IsWrittenAfterATimeOut) {
  const Environment environment(With({{"TUTTI_TIMEOUT_S", "0.3"}}));
  RunRankProcesses(2, [](int rank, Board& board) {
    ncclComm_t comm = Join(rank, 2, board);
    AllReduce(comm);
    if (rank == 0) {
      AllReduce(comm, ncclTimeout);
      board.Set(kOver, 1);
    }
    ASSERT_TRUE(board.Await(kOver, 1));
    EXPECT_NCCL(ncclCommAbort(comm));
  });
  EXPECT_THAT(LogText(),
              AllOf(HasSubstr("a time-out: the state of this process"),
                    HasSubstr("in collective number 2, AllReduce(count 1, float32, sum)"),
                    HasSubstr("waits for rank 1 (host")));
}

}  // namespace
}  // namespace tutti::testing
