// Ranks that are slow, not dead: the log names them, and `tutti` shows them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "conformance/processes.h"
#include "observe/board_folder.h"

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;
constexpr int kNamed = kFirstFreeMark;
constexpr int kSeen = kFirstFreeMark + 1;
constexpr const char* kSlow = "slow: in the last";
constexpr const char* kRecovered = "no longer keeps the other ranks waiting";

// The environment and the log of a job.
class SlowJob {
 public:
  SlowJob() : log_(boards_.path() + "/log"), environment_({{"NCCL_DEBUG_FILE", log_}}) {}

  std::string LogText() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool LogHas(const std::string& text) const { return LogText().find(text) != std::string::npos; }

 private:
  const BoardFolder boards_;
  const std::string log_;
  const Environment environment_;
};

// Returns whether all ranks go on: rank 0 decides for all.
bool GoesOn(ncclComm_t comm, bool mine) {
  float value = mine ? 1 : 0;
  EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
  return value > 0;
}

// Runs collectives until rank 0 is told to end.
template <class Before, class Ends>
void RunUntil(ncclComm_t comm, int rank, Before before, Ends ends) {
  do {
    before();
  } while (GoesOn(comm, rank == 0 && !ends()));
}

class SlowRankTest : public ::testing::TestWithParam<int> {};

TEST_P(SlowRankTest, IsNamedUntilItRecovers) {
  const int culprit = GetParam();
  const SlowJob job;
  RankProcesses ranks(kRanks, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, kRanks, board);
    const auto sleep = [&] {
      if (rank == culprit) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    };
    RunUntil(comm, rank, sleep, [&] { return job.LogHas(kSlow); });
    if (rank == 0) board.Set(kNamed, 1);
    RunUntil(comm, rank, sleep, [&] { return board.Get(kSeen) != 0; });
    RunUntil(
        comm, rank, [] {}, [&] { return job.LogHas(kRecovered); });
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  ASSERT_TRUE(ranks.board().Await(kNamed, 1));
  const std::string name = "rank " + std::to_string(culprit) + " (host ";
  const std::string pid = "pid " + std::to_string(ranks.pid(culprit)) + ")";
  EXPECT_THAT(job.LogText(), AllOf(HasSubstr(name), HasSubstr(pid + " is slow"),
                                   HasSubstr("TUTTI_FIND_SLOW_RANKS=0")));
  const std::string asked = std::to_string(ranks.pid(0));
  const Outcome doctor = RunCommand(TUTTI_PROGRAM " doctor --json " + asked);
  EXPECT_EQ(doctor.status, 0) << doctor.output;
  const nlohmann::json found =
      nlohmann::json::parse(doctor.output).at("jobs").at(0).at("communicators").at(0);
  EXPECT_EQ(found.at("finding"), "only-slow");
  EXPECT_EQ(found.at("culprits"), std::vector{culprit});
  EXPECT_THAT(found.at("sentence").get<std::string>(),
              HasSubstr(pid + " keeps the others waiting"));
  const Outcome stat = RunCommand(TUTTI_PROGRAM " stat --interval 0.05 " + asked);
  EXPECT_THAT(stat.output, HasSubstr(pid + " keeps the others waiting"));
  ranks.board().Set(kSeen, 1);
  ranks.Wait();
  const std::string text = job.LogText();
  EXPECT_EQ(text.find(kSlow), text.rfind(kSlow)) << "said again: " << text;
}

INSTANTIATE_TEST_SUITE_P(Ranks, SlowRankTest, ::testing::Values(0, 2));

}  // namespace
}  // namespace tutti::testing
