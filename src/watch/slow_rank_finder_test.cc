// Ranks of one process that ask and answer over few links, on an event loop with a clock of the
// test's own.

#include "watch/slow_rank_finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "watch/testing/watch_network.h"

namespace tutti {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Network = testing::WatchNetwork;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kSecondNs = 1000 * kMs;

// Runs everything on the thread of the test, when the test lets time pass.
class VirtualLoop final : public EventLoop {
 public:
  int64_t now_ns() const { return now_ns_; }
  int num_timers() const { return num_timers_; }  // that have run
  void Advance(int64_t ns) {
    const int64_t until_ns = now_ns_ + ns;
    RunPosted();
    while (!timers_.empty() && timers_.begin()->first.first <= until_ns) {
      const auto first = timers_.extract(timers_.begin());
      now_ns_ = first.key().first;
      ++num_timers_;
      first.mapped()();
      RunPosted();
    }
    now_ns_ = until_ns;
  }

  void Post(Task task) override { posted_.push_back(std::move(task)); }
  void RunSync(Task task) override {
    RunPosted();
    task();
  }
  Status AddFd(int, uint32_t, FdCallback) override { return Status::Ok(); }
  Status ModifyFd(int, uint32_t) override { return Status::Ok(); }
  void RemoveFd(int) override {}
  TimerId AddTimer(int64_t delay_ns, Task task) override {
    timers_[{now_ns_ + delay_ns, ++last_timer_}] = std::move(task);
    return last_timer_;
  }
  void CancelTimer(TimerId timer) override {
    std::erase_if(timers_, [timer](const auto& one) { return one.first.second == timer; });
  }
  bool OnLoopThread() const override { return true; }
  AcceptLimit& accept_limit() override { return limit_; }

 private:
  void RunPosted() {
    for (const Task& task : std::exchange(posted_, {})) task();
  }

  int64_t now_ns_ = kSecondNs;
  std::vector<Task> posted_;
  std::map<std::pair<int64_t, TimerId>, Task> timers_;  // by time
  TimerId last_timer_ = 0;
  int num_timers_ = 0;
  AcceptLimit limit_{1};
};

// A job of some ranks.
class Job {
 public:
  // The ranks in `without` do not search for slow ranks.
  explicit Job(int num_ranks, const std::set<int>& without = {})
      : num_ranks_(num_ranks), network_(num_ranks) {
    network_.SetLinked([num_ranks](int a, int b) {
      const int apart = a < b ? b - a : a - b;
      return std::has_single_bit(static_cast<unsigned>(apart)) ||
             std::has_single_bit(static_cast<unsigned>(num_ranks - apart));
    });
    for (int r = 0; r < num_ranks; ++r) {
      CountMessagesTo(r);
      if (!without.contains(r))
        finders_.push_back(std::make_unique<SlowRankFinder>(
            loop_, network_.watch(r),
            SlowRankFinder::Options{.rank = r,
                                    .num_ranks = num_ranks,
                                    .run_delay_ns = [] { return int64_t{1}; },
                                    .now_ns = [this] { return loop_.now_ns(); }}));
    }
  }
  ~Job() { finders_.clear(); }

  // Makes collectives of ten milliseconds for this time, in which all ranks wait for slow ranks.
  void Run(int64_t ns, const std::set<int>& slow = {}) {
    for (int64_t left = ns; left > 0; left -= 10 * kMs) {
      loop_.Advance(10 * kMs);
      for (int r = 0; r < num_ranks_; ++r) {
        testing::Launch(network_.watch(r), testing::AllReduceOf(1));
        if (!slow.empty() && !slow.contains(r))
          network_.watch(r).NoteWaited(Collective::kAllReduce, 9 * kMs);
      }
    }
  }
  void Idle(int64_t ns) { loop_.Advance(ns); }
  // As Run, and returns the lines of the log.
  std::vector<std::string> LinesOf(int64_t ns, const std::set<int>& slow = {}) {
    ::testing::internal::CaptureStderr();
    Run(ns, slow);
    std::istringstream text(::testing::internal::GetCapturedStderr());
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  // Returns the ranks that the board of each rank shows.
  std::set<std::vector<int>> Shown() {
    std::set<std::vector<int>> all;
    for (int r = 0; r < num_ranks_; ++r) {
      std::vector<int> ranks;
      if (const std::optional<observe::SlowRecord> slow = Record(r))
        ranks.assign(slow->ranks.begin(), slow->ranks.begin() + slow->num_ranks);
      all.insert(ranks);
    }
    return all;
  }
  std::optional<observe::SlowRecord> Record(int rank) {
    return network_.watch(rank).record().slow.Load();
  }
  int num_asks() const { return loop_.num_timers(); }
  int num_messages() const { return num_messages_; }

 private:
  void CountMessagesTo(int rank) {
    auto& control = network_.events(rank).control;
    control = [this, deliver = control](int from, std::span<const std::byte> payload) {
      ++num_messages_;
      deliver(from, payload);
    };
  }

  const int num_ranks_;
  VirtualLoop loop_;
  int num_messages_ = 0;
  Network network_;
  std::vector<std::unique_ptr<SlowRankFinder>> finders_;
};

class SlowRankFinderTest : public ::testing::TestWithParam<int> {};

// The last rank is many links away from rank 0.
TEST_P(SlowRankFinderTest, ShowsASlowRankOnAllRanksUntilTheRankRecovers) {
  const int slow = GetParam() - 1;
  Job job(GetParam());
  job.Run(2 * kSecondNs, {slow});
  EXPECT_THAT(job.Shown(), ElementsAre(IsEmpty()));
  job.Run(2 * kSecondNs, {slow});
  EXPECT_THAT(job.Shown(), ElementsAre(ElementsAre(slow)));
  EXPECT_NEAR(job.Record(0)->cost_ppm, 900'000, 10'000);
  EXPECT_NEAR(static_cast<double>(job.Record(slow)->per_collective_ns), 9e6, 1e5);
  job.Run(4 * kSecondNs);
  EXPECT_THAT(job.Shown(), ElementsAre(IsEmpty()));
  const int asks = job.num_asks();
  job.Run(60 * kSecondNs);
  EXPECT_EQ(job.num_asks(), asks) << "a job in which nobody waits is asked";
}

INSTANTIATE_TEST_SUITE_P(Ranks, SlowRankFinderTest, ::testing::Values(2, 3, 8, 11));

TEST(SlowRankFinderJobTest, FindsAGroupThatHoldsRanksZeroAndOne) {
  Job job(16);
  job.Run(4 * kSecondNs, {0, 1, 2, 3});
  EXPECT_THAT(job.Shown(), ElementsAre(ElementsAre(0, 1, 2, 3)));
}

// Slow ranks stay on the boards, and nobody knows whether they have recovered.
TEST(SlowRankFinderJobTest, AsksAnIdleJobLessAndLessOften) {
  Job job(4);
  job.Run(4 * kSecondNs, {3});
  const int asks = job.num_asks();
  job.Idle(24 * 3600 * kSecondNs);
  const int idle_asks = job.num_asks();
  EXPECT_LE(idle_asks - asks, 20);
  EXPECT_THAT(job.Shown(), ElementsAre(ElementsAre(3)));
  // A wait begins the asks anew.
  job.Run(kSecondNs, {3});
  EXPECT_GE(job.num_asks() - idle_asks, 4);
  job.Run(4 * kSecondNs);
  EXPECT_THAT(job.Shown(), ElementsAre(IsEmpty()));
}

TEST(SlowRankFinderJobTest, TellsRankZeroOfNoWaitsWhileRankZeroAsks) {
  Job job(2);
  job.Run(10 * kSecondNs, {0});
  // An ask and its answer each, and the first word of rank 1.
  EXPECT_LE(job.num_messages(), 2 * (job.num_asks() + 1) + 1);
}

TEST(SlowRankFinderJobTest, SaysAtMostAPairOfLinesInTenMinutes) {
  Job job(4);
  std::vector<std::string> lines;
  for (int minute = 0; minute < 9; ++minute) {
    for (const auto& line : job.LinesOf(10 * kSecondNs, {1})) lines.push_back(line);
    for (const auto& line : job.LinesOf(50 * kSecondNs)) lines.push_back(line);
  }
  EXPECT_THAT(lines, ElementsAre(HasSubstr("rank 1 is slow: in the last"),
                                 HasSubstr("rank 1 no longer keeps the other ranks waiting")));
}

// A group that grows is told of once the time has come, and its recovery names all its ranks.
TEST(SlowRankFinderJobTest, SaysThatAGroupHasGrown) {
  Job job(8);
  EXPECT_THAT(job.LinesOf(10 * kSecondNs, {2}), ElementsAre(HasSubstr("rank 2 is slow")));
  const int64_t since_ns = job.Record(0)->since_ns;
  EXPECT_THAT(job.LinesOf(10 * kSecondNs, {2, 5}), IsEmpty());
  EXPECT_THAT(job.Shown(), ElementsAre(ElementsAre(2, 5)));
  EXPECT_GT(job.Record(0)->since_ns, since_ns);
  EXPECT_THAT(job.LinesOf(600 * kSecondNs, {2, 5}),
              ElementsAre(HasSubstr("rank 2, rank 5 are slow")));
  EXPECT_THAT(job.LinesOf(10 * kSecondNs), ElementsAre(HasSubstr("rank 2, rank 5 no longer keep")));
}

TEST(SlowRankFinderJobTest, SaysOnceWhichRanksTakeNoPart) {
  Job without_three(4, {3}), without_zero(4, {0});
  EXPECT_THAT(without_three.LinesOf(60 * kSecondNs, {1}),
              ElementsAre(AllOf(HasSubstr("rank 3 does not take part"),
                                HasSubstr("TUTTI_FIND_SLOW_RANKS must be the same"))));
  const auto line = HasSubstr("rank 0 does not take part");
  EXPECT_THAT(without_zero.LinesOf(60 * kSecondNs, {3}), UnorderedElementsAre(line, line));
  const int messages = without_zero.num_messages();
  without_zero.Run(60 * kSecondNs, {3});
  EXPECT_EQ(without_zero.num_messages(), messages);
}

// Bytes of any content change nothing.
TEST(SlowRankFinderMessagesTest, DropsMessagesThatMakeNoSense) {
  VirtualLoop loop;
  Network network(2);
  SlowRankFinder first(loop, network.watch(0), {.rank = 0, .num_ranks = 2});
  SlowRankFinder second(loop, network.watch(1), {.rank = 1, .num_ranks = 2});
  for (int kind = 0; kind < 256; ++kind)
    for (const size_t size : {1u, 2u, 9u, 40u, 41u, 53u, 57u, 200u}) {
      std::vector<std::byte> message(size, std::byte{0xff});
      message[0] = static_cast<std::byte>(kind);
      first.OnPace(1, message);
      second.OnPace(0, message);
    }
  loop.Advance(10 * kSecondNs);
  EXPECT_FALSE(network.watch(0).record().slow.Load());
  EXPECT_FALSE(network.watch(1).record().slow.Load());
}

}  // namespace
}  // namespace tutti
