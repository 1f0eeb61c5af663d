#include "observe/jobs.h"

#include <gtest/gtest.h>

namespace tutti::observe {
namespace {

CommunicatorSnapshot RankOf(uint64_t id, int rank, int num_ranks, uint64_t meeting = 0) {
  CommunicatorSnapshot one;
  one.id = id;
  one.meeting = meeting;
  one.rank = rank;
  one.num_ranks = num_ranks;
  one.phase = Phase::kInOperation;
  return one;
}

ProcessSnapshot ProcessOf(int pid, std::vector<CommunicatorSnapshot> communicators,
                          Life life = Life::kRunning) {
  ProcessSnapshot process;
  process.key = {pid, 1, 1};
  process.life = life;
  process.board.communicators = std::move(communicators);
  return process;
}

std::vector<JobView> JobsOf(std::vector<ProcessSnapshot> processes, int gone = 0) {
  return FindJobs({.at_ns = 5, .processes = std::move(processes)},
                  [gone](int pid) { return pid != gone; });
}

TEST(JobsTest, ProcessesThatShareCommunicatorsAreAJob) {
  const std::vector<JobView> jobs =
      JobsOf({ProcessOf(30, {RankOf(1, 0, 2)}), ProcessOf(20, {RankOf(1, 1, 2), RankOf(2, 0, 2)}),
              ProcessOf(40, {RankOf(2, 1, 2)}), ProcessOf(10, {RankOf(3, 0, 1)})});
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].name, 10);
  EXPECT_EQ(jobs[1].name, 20);
  EXPECT_TRUE(jobs[1].HasProcess(40));
  ASSERT_EQ(jobs[1].communicators.size(), 2u);
  EXPECT_EQ(jobs[1].communicators[0].ranks.size(), 2u);
  EXPECT_NE(jobs[1].communicators[0].Find(1), nullptr);
  EXPECT_EQ(jobs[1].communicators[0].Find(2), nullptr);
}

TEST(JobsTest, LivingJobsStandFirst) {
  const std::vector<JobView> jobs =
      JobsOf({ProcessOf(10, {RankOf(1, 0, 1)}, Life::kEnded), ProcessOf(20, {RankOf(2, 0, 1)})});
  ASSERT_EQ(jobs.size(), 2u);
  EXPECT_EQ(jobs[0].name, 20);
  EXPECT_TRUE(jobs[0].alive);
  EXPECT_FALSE(jobs[1].alive);
}

TEST(JobsTest, ARankThatHasNotMetTheOthersIsWithThem) {
  const std::vector<JobView> jobs = JobsOf(
      {ProcessOf(10, {RankOf(7, 0, 2, /*meeting=*/3)}), ProcessOf(20, {RankOf(0, 1, 2, 3)})});
  ASSERT_EQ(jobs.size(), 1u);
  ASSERT_EQ(jobs[0].communicators.size(), 1u);
  EXPECT_EQ(jobs[0].communicators[0].id, 7u);
  EXPECT_EQ(jobs[0].communicators[0].ranks.size(), 2u);
}

TEST(JobsTest, SaysWhatAProcessDoesInAnotherCommunicator) {
  CommunicatorSnapshot busy = RankOf(2, 0, 2);
  busy.in_collective = true;
  busy.begun = 3;
  const std::vector<JobView> jobs = JobsOf({ProcessOf(10, {RankOf(1, 0, 2), busy})});
  EXPECT_EQ(jobs[0].communicators[0].ranks[0].elsewhere,
            "in collective number 3 of communicator 0000000000000002");
  EXPECT_EQ(jobs[0].communicators[1].ranks[0].elsewhere, "");
}

TEST(JobsTest, ARankOfThisHostWithoutProcessAndBoardHasEnded) {
  CommunicatorSnapshot one = RankOf(1, 0, 3);
  one.names = {{"here", 10}, {"here", 20}, {"far", 20}};
  const CommunicatorView view = JobsOf({ProcessOf(10, {one})}, /*gone=*/20)[0].communicators[0];
  ASSERT_EQ(view.ranks.size(), 2u);
  EXPECT_EQ(view.ranks[1].rank, 1);
  EXPECT_EQ(view.ranks[1].life, Life::kEnded);
  EXPECT_FALSE(view.ranks[1].snapshot);
}

TEST(JobsTest, OfTwoBoardsWithARankTheLivingOneCounts) {
  const CommunicatorView view =
      JobsOf({ProcessOf(10, {RankOf(1, 0, 1)}, Life::kEnded), ProcessOf(20, {RankOf(1, 0, 1)})})[0]
          .communicators[0];
  ASSERT_EQ(view.ranks.size(), 1u);
  EXPECT_EQ(view.ranks[0].process.pid, 20);
}

}  // namespace
}  // namespace tutti::observe
