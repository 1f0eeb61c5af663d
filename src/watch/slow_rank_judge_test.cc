#include "watch/slow_rank_judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tutti {
namespace {

constexpr int64_t kMs = 1'000'000;

using Changes = std::vector<std::vector<int>>;

std::vector<int> SlowOf(const SlowRankJudge& judge) {
  return judge.slow() == nullptr ? std::vector<int>() : judge.slow()->ranks;
}

// Ranks that work and then wait for the slowest, step after step.
class Job {
 public:
  explicit Job(int num_ranks) : totals_(static_cast<size_t>(num_ranks), {.without_core_ns = 1}) {}

  // Makes a step in which the ranks work for these times. `without_core` are parts of the times.
  void Step(const std::vector<int64_t>& work_ns, const std::vector<int64_t>& without_core = {}) {
    const int64_t step_ns = *std::ranges::max_element(work_ns);
    for (size_t i = 0; i < totals_.size(); ++i) {
      totals_[i].now_ns += step_ns;
      totals_[i].waited_ns += step_ns - work_ns[i];
      ++totals_[i].collectives;
      if (!without_core.empty()) totals_[i].without_core_ns += without_core[i];
    }
  }
  // Lets the judge look after each `every` of `count` steps. Returns the slow ranks after each
  // change of them.
  template <class Work>
  Changes Run(SlowRankJudge& judge, int count, Work work, int every = 4) {
    Changes all;
    for (int i = 1; i <= count; ++i) {
      const std::vector<int> before = SlowOf(judge);
      work();
      if (i % every == 0) judge.Add(totals_);
      if (SlowOf(judge) != before) all.push_back(SlowOf(judge));
    }
    return all;
  }
  std::vector<RankTotals>& totals() { return totals_; }

 private:
  std::vector<RankTotals> totals_;
};

std::vector<int64_t> Work(int num_ranks, int64_t ms, int slow = -1, int64_t slow_ms = 0) {
  std::vector<int64_t> work(static_cast<size_t>(num_ranks), ms * kMs);
  if (slow >= 0) work[static_cast<size_t>(slow)] = slow_ms * kMs;
  return work;
}

TEST(SlowRankJudgeTest, NamesARankThatIsAThirdSlowerWithinSeconds) {
  for (const int num_ranks : {2, 3, 4, 64}) {
    SlowRankJudge judge;
    Job job(num_ranks);
    const auto step = [&] { job.Step(Work(num_ranks, 10, 1, 13)); };
    EXPECT_TRUE(job.Run(judge, 192, step).empty());  // 2.5 s without the first round
    ASSERT_EQ(job.Run(judge, 8, step), Changes{{1}}) << num_ranks;
    EXPECT_NEAR(judge.slow()->share, 3.0 / 13, 1e-9);
    EXPECT_EQ(judge.slow()->per_collective_ns, 3 * kMs);
    EXPECT_EQ(judge.slow()->collectives, 196u);
    EXPECT_EQ(judge.slow()->share_without_core, 0);
  }
}

TEST(SlowRankJudgeTest, SaysNothingOfARankThatIsATenthSlower) {
  SlowRankJudge judge;
  Job job(4);
  EXPECT_TRUE(job.Run(judge, 4000, [&] { job.Step(Work(4, 10, 1, 11)); }).empty());
}

// Each rank is late in turn, by a random time, as on a loaded machine.
TEST(SlowRankJudgeTest, SaysNothingOfRandomLateness) {
  for (const int num_ranks : {2, 4, 8, 64}) {
    for (unsigned seed = 0; seed < 5; ++seed) {
      SlowRankJudge judge;
      Job job(num_ranks);
      std::mt19937 random(seed);
      std::exponential_distribution<double> late(1.0 / 10);
      const Changes changes = job.Run(judge, 20'000, [&] {
        std::vector<int64_t> work;
        for (int r = 0; r < num_ranks; ++r)
          work.push_back(5 * kMs + static_cast<int64_t>(late(random) * 1e6));
        job.Step(work);
      });
      EXPECT_TRUE(changes.empty()) << num_ranks << " ranks, seed " << seed;
    }
  }
}

TEST(SlowRankJudgeTest, NamesAGroupAndNotHalfOfTheRanks) {
  const auto work = [](int slow) {
    std::vector<int64_t> all(16, 10 * kMs);
    std::fill_n(all.begin() + 4, slow, 20 * kMs);
    return all;
  };
  SlowRankJudge few, many;
  Job job(16), other(16);
  EXPECT_EQ(job.Run(few, 150, [&] { job.Step(work(3)); }), (Changes{{4, 5, 6}}));
  EXPECT_TRUE(other.Run(many, 1000, [&] { other.Step(work(8)); }).empty());
}

// A rank that shares its processor is named when the rank has taken twice the time for seconds. A
// rank that may share its processor is treated alike.
TEST(SlowRankJudgeTest, GivesASharedProcessorMoreTime) {
  const auto run = [](int64_t slow_ms, int steps, bool known) {
    SlowRankJudge judge;
    Job job(4);
    if (!known) job.totals()[2].without_core_ns = 0;
    const std::vector<int64_t> without_core = {0, 0, known ? (slow_ms - 10) * kMs : 0, 0};
    const Changes changes =
        job.Run(judge, steps, [&] { job.Step(Work(4, 10, 2, slow_ms), without_core); });
    EXPECT_EQ(known && judge.slow() != nullptr,
              judge.slow() != nullptr && judge.slow()->share_without_core);
    return !changes.empty();
  };
  for (const bool known : {true, false}) {
    EXPECT_FALSE(run(14, 4000, known));
    EXPECT_FALSE(run(20, 240, known));  // 4.8 s
    EXPECT_TRUE(run(20, 280, known));   // 5.6 s
  }
}

// A total that has fallen tells nothing of the time since.
TEST(SlowRankJudgeTest, TakesAFallenTotalForLoad) {
  SlowRankJudge judge;
  Job job(4);
  job.totals()[2].without_core_ns = 1'000'000 * kMs;
  const auto falls = [&] { job.Step(Work(4, 10, 2, 14), {0, 0, -kMs, 0}); };
  EXPECT_TRUE(job.Run(judge, 4000, falls).empty());
}

TEST(SlowRankJudgeTest, FollowsSlowRanks) {
  SlowRankJudge judge;
  Job job(4);
  const auto slow = [&](int rank) { return [&, rank] { job.Step(Work(4, 10, rank, 20)); }; };
  const auto healthy = [&] { job.Step(Work(4, 10)); };
  // A short time of slowness is none.
  EXPECT_TRUE(job.Run(judge, 100, slow(1)).empty());
  EXPECT_TRUE(job.Run(judge, 100, healthy).empty());
  EXPECT_EQ(job.Run(judge, 4000, slow(1)), Changes{{1}});
  // A short recovery is none.
  EXPECT_TRUE(job.Run(judge, 40, healthy).empty());
  EXPECT_TRUE(job.Run(judge, 4000, slow(1)).empty());
  EXPECT_EQ(job.Run(judge, 4000, healthy), Changes{{}});
  EXPECT_EQ(job.Run(judge, 4000, slow(2)), Changes{{2}});
  EXPECT_EQ(job.Run(judge, 4000, slow(0)), (Changes{{}, {0}}));
}

// A cost between the two thresholds neither accuses a rank nor acquits a rank.
TEST(SlowRankJudgeTest, HasHysteresis) {
  SlowRankJudge judge;
  Job job(4);
  const auto between = [&] { job.Step(Work(4, 85, 1, 100)); };
  EXPECT_TRUE(job.Run(judge, 400, between).empty());
  EXPECT_EQ(job.Run(judge, 100, [&] { job.Step(Work(4, 50, 1, 100)); }), Changes{{1}});
  EXPECT_TRUE(job.Run(judge, 400, between).empty());
  EXPECT_NE(judge.slow(), nullptr);
}

// A single late collective is no evidence.
TEST(SlowRankJudgeTest, WaitsForWholeRounds) {
  SlowRankJudge judge;
  Job job(2);
  const auto slow = [&] { job.Step(Work(2, 100, 1, 200)); };
  // The first collective begins the first round.
  EXPECT_TRUE(job.Run(judge, 48, slow, 1).empty());
  EXPECT_EQ(job.Run(judge, 1, slow, 1), Changes{{1}});
}

TEST(SlowRankJudgeTest, NeedsFewerLongCollectives) {
  SlowRankJudge judge;
  Job job(2);
  const auto slow = [&] { job.Step(Work(2, 400, 1, 600)); };
  EXPECT_TRUE(job.Run(judge, 24, slow, 1).empty());
  EXPECT_EQ(job.Run(judge, 1, slow, 1), Changes{{1}});
}

// Totals of any value, as a broken peer could send them.
TEST(SlowRankJudgeTest, TakesAnyTotals) {
  SlowRankJudge judge;
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    std::vector<RankTotals> totals(3);
    for (RankTotals& one : totals)
      one = {static_cast<int64_t>(random() >> 2), random(), static_cast<int64_t>(random() >> 2),
             static_cast<int64_t>(random() >> 2)};
    judge.Add(totals);
  }
}

}  // namespace
}  // namespace tutti
