#include "observe/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tutti::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A job with a communicator of two ranks, of which rank 0 is here.
Jobs JobsWith(const std::string& name) {
  observe::CommunicatorSnapshot snapshot;
  snapshot.begun = 3;
  snapshot.begun_of[static_cast<size_t>(Collective::kAllReduce)] = 3;
  snapshot.waited_ns = 1'500'000'000;
  observe::RankView rank;
  rank.process.pid = 12;
  rank.life = observe::Life::kRunning;
  rank.snapshot = snapshot;
  observe::CommunicatorView view;
  view.id = 0xab;
  view.name = name;
  view.num_ranks = 2;
  view.names = {{"here", 12}, {"there", 13}};
  view.ranks = {rank};
  observe::ProcessSnapshot process;
  process.key.pid = 12;
  process.life = observe::Life::kRunning;
  process.board.host = "here";
  process.board.program = "train";
  observe::JobView job;
  job.name = 12;
  job.alive = true;
  job.processes = {process};
  job.communicators = {view};
  return {.at_ns = 0, .all = {job}};
}

TEST(MetricsTextTest, HasASampleForEachRank) {
  const std::string labels =
      R"(version="tutti",slurm_job_id="7",node="here",gpu="none",comm_name="tp",n_nodes="2",)"
      R"(nranks="2",comm_id="00000000000000ab",job_pid="12",rank="0",pid="12")";
  EXPECT_THAT(
      MetricsText(JobsWith("tp"), "7"),
      AllOf(HasSubstr("# TYPE tutti_collectives_total counter\ntutti_collectives_total{" + labels +
                      ",collective=\"AllReduce\"} 3\n"),
            HasSubstr("tutti_collective_waited_seconds_total{" + labels + "} 1.5\n"),
            HasSubstr(R"(tutti_processes{version="tutti",job_pid="12",program="train",)"
                      R"(state="running"} 1)"),
            HasSubstr("tutti_jobs{version=\"tutti\"} 1\n"), Not(HasSubstr("tutti_slow_rank"))));
}

TEST(MetricsTextTest, HasTheCostOfSlowRanksOnTheseRanksAlone) {
  Jobs jobs = JobsWith("tp");
  std::vector<observe::RankView>& ranks = jobs.all[0].communicators[0].ranks;
  ranks.push_back(ranks[0]);
  ranks[1].rank = 1;
  ranks[0].snapshot->slow = {.per_collective_ns = 2'000'000, .share = 0.5, .ranks = {1}};
  const std::string text = MetricsText(jobs, "");
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("rank=\"1\",pid=\"12\"} 0.5\n"), HasSubstr("rank=\"1\",pid=\"12\"} 0.002\n"),
            HasSubstr("slurm_job_id=\"unknown\""), Not(HasSubstr("rank=\"0\",pid=\"12\"} 0.5"))));
}

TEST(MetricsTextTest, EscapesWhatWouldEndALabel) {
  EXPECT_THAT(MetricsText(JobsWith("a\"b\\c"), ""), HasSubstr(R"(comm_name="a\"b\\c",)"));
}

TEST(MetricsTextTest, LeavesOutJobsThatHaveEnded) {
  Jobs jobs = JobsWith("tp");
  jobs.all[0].alive = false;
  EXPECT_EQ(MetricsText(jobs, "").find("tutti_collectives_total"), std::string::npos);
  EXPECT_THAT(MetricsText(jobs, ""), HasSubstr("tutti_jobs{version=\"tutti\"} 0\n"));
}

}  // namespace
}  // namespace tutti::tools
