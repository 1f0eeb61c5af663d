#include "coordinator/clock_meter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The meters of a job whose clocks are wrong each in its own way, over links with different delays
// in each direction. Time is simulated.
class Job {
 public:
  Job(int num_ranks, uint64_t seed) : random_(seed), measured_(static_cast<size_t>(num_ranks)) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      wrong_ns_.push_back(static_cast<int64_t>(random_() % 20'000'000'000) - 10'000'000'000);
      ClockMeter::Hooks hooks;
      hooks.now_ns = [this, rank] { return ClockOf(rank); };
      hooks.send = [this, rank, num_ranks](int to, std::span<const std::byte> message) {
        const int distance = std::abs(to - rank);
        EXPECT_TRUE(std::has_single_bit(static_cast<unsigned>(distance)))
            << "there is no link from rank " << rank << " to rank " << to;
        EXPECT_LT(to, num_ranks);
        ++num_sent_[rank];
        if (dead_.count(to) > 0) return;
        const int64_t delay_ns = DelayNs(rank, to);
        EXPECT_LE(delay_ns, longest_ns_);
        mail_.emplace(now_ns_ + delay_ns, Mail{to, {message.begin(), message.end()}});
      };
      hooks.measured = [this, rank](const ClockDistance& distance) {
        measured_[static_cast<size_t>(rank)].push_back(distance);
      };
      meters_.push_back(std::make_unique<ClockMeter>(rank, num_ranks, std::move(hooks)));
    }
  }

  ClockMeter& at(int rank) { return *meters_[static_cast<size_t>(rank)]; }
  const std::vector<ClockDistance>& measured(int rank) {
    return measured_[static_cast<size_t>(rank)];
  }
  int64_t TrueNs(int rank) { return wrong_ns_[0] - wrong_ns_[static_cast<size_t>(rank)]; }
  int64_t longest_ns() const { return longest_ns_; }
  int sent(int rank) { return num_sent_[rank]; }
  void Die(int rank) { dead_.insert(rank); }
  void Revive(int rank) { dead_.erase(rank); }
  void Measure() {
    for (const auto& meter : meters_) meter->Measure();
  }
  // Runs until no message is under way, or until this number of messages has arrived.
  void Run(int messages = 1 << 30) {
    for (; messages > 0 && !mail_.empty(); --messages) {
      const auto first = mail_.begin();
      now_ns_ = first->first;
      const Mail mail = first->second;
      mail_.erase(first);
      EXPECT_TRUE(at(mail.to).OnMessage(mail.bytes));
    }
  }
  std::vector<Bytes> UnderWay() const {
    std::vector<Bytes> all;
    for (const auto& [arrival_ns, mail] : mail_) all.push_back(mail.bytes);
    return all;
  }

 private:
  struct Mail {
    int to;
    Bytes bytes;
  };
  int64_t ClockOf(int rank) {
    // Reading the clock takes time, too.
    return (now_ns_ += 50) + wrong_ns_[static_cast<size_t>(rank)];
  }
  // One direction is much slower than the opposite one, and now and then any message is slow.
  int64_t DelayNs(int from, int to) {
    const int64_t usual_ns = from < to ? 90'000 : 10'000;
    return random_() % 4 == 0 ? usual_ns : usual_ns + static_cast<int64_t>(random_() % 900'000);
  }

  std::mt19937_64 random_;
  const int64_t longest_ns_ = 1'000'000;
  int64_t now_ns_ = 1'700'000'000'000'000'000;
  std::vector<int64_t> wrong_ns_;
  std::vector<std::unique_ptr<ClockMeter>> meters_;
  std::vector<std::vector<ClockDistance>> measured_;
  std::multimap<int64_t, Mail> mail_;
  std::set<int> dead_;
  std::map<int, int> num_sent_;
};

TEST(ClockMeterTest, TheDistanceIsRightWithinItsErrorWhateverTheDelays) {
  for (const int ranks : {1, 2, 3, 6, 13, 64, 100}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Job job(ranks, seed);
      job.Measure();
      job.Run();
      EXPECT_THAT(job.measured(0), IsEmpty());
      for (int rank = 1; rank < ranks; ++rank) {
        ASSERT_THAT(job.measured(rank), SizeIs(1)) << "rank " << rank << ", seed " << seed;
        const ClockDistance distance = job.measured(rank).front();
        EXPECT_LE(std::abs(distance.to_rank0_ns - job.TrueNs(rank)), distance.error_ns)
            << "rank " << rank << " of " << ranks << ", seed " << seed;
        // The error is at most half of the longest way there and back.
        const int hops = std::popcount(static_cast<unsigned>(rank));
        EXPECT_LT(distance.error_ns, hops * job.longest_ns() + 10'000);
      }
    }
  }
}

// Only the ranks on the way work, and each asks no more than its share.
TEST(ClockMeterTest, OneRankMayMeasureAlone) {
  Job job(16, 1);
  job.at(11).Measure();
  job.Run();
  EXPECT_THAT(job.measured(11), SizeIs(1));
  for (int rank = 0; rank < 16; ++rank) {
    // 11 → 10 → 8 → 0 and back: the ranks in between hand on both ways.
    const std::map<int, int> turns = {{11, 1}, {10, 2}, {8, 2}, {0, 1}};
    const int expected = turns.count(rank) > 0 ? turns.at(rank) * ClockMeter::kQuestions : 0;
    EXPECT_EQ(job.sent(rank), expected) << "rank " << rank;
    if (rank != 11) {
      EXPECT_THAT(job.measured(rank), IsEmpty());
    }
  }
}

TEST(ClockMeterTest, TheAnswerThatCameBackSoonestCounts) {
  int64_t now_ns = 1'000'000;
  std::vector<ClockDistance> measured;
  std::vector<Bytes> questions;
  std::vector<Bytes> answers;
  ClockMeter zero(
      0, 2,
      {[&] { return now_ns + 777; },
       [&](int, std::span<const std::byte> m) { answers.emplace_back(m.begin(), m.end()); },
       nullptr});
  ClockMeter one(
      1, 2,
      {[&] { return now_ns; },
       [&](int, std::span<const std::byte> m) { questions.emplace_back(m.begin(), m.end()); },
       [&](const ClockDistance& d) { measured.push_back(d); }});
  one.Measure();
  for (int i = 0; i < ClockMeter::kQuestions; ++i) {
    ASSERT_THAT(questions, SizeIs(i + 1));
    EXPECT_THAT(measured, IsEmpty());
    now_ns += 10;
    zero.OnMessage(questions.back());
    now_ns += i == 5 ? 10 : 1000;
    one.OnMessage(answers.back());
  }
  EXPECT_THAT(measured, ElementsAre(ClockDistance{777, 10}));
}

TEST(ClockMeterTest, WhatDiesLeavesTheQuestionOpenForTheNextMeasurement) {
  Job job(13, 3);
  job.Die(8);
  job.Measure();
  job.Run();
  for (int rank = 1; rank < 13; ++rank) {
    // Rank 8 itself asks, and does not hear the answers; all ranks behind rank 8 are cut off.
    EXPECT_EQ(job.measured(rank).size(), rank >= 8 ? 0 : 1) << "rank " << rank;
  }
  job.Revive(8);
  job.Measure();
  job.Run();
  for (int rank = 1; rank < 13; ++rank) {
    ASSERT_GE(job.measured(rank).size(), 1u) << "rank " << rank;
    const ClockDistance distance = job.measured(rank).back();
    EXPECT_LE(std::abs(distance.to_rank0_ns - job.TrueNs(rank)), distance.error_ns);
  }
}

TEST(ClockMeterTest, FewerAnswersThanQuestionsAreToldWithTheNextMeasurement) {
  Job job(2, 4);
  job.at(1).Measure();
  job.Run(7);  // three answers, and a question
  EXPECT_THAT(job.measured(1), IsEmpty());
  job.at(1).Measure();
  ASSERT_THAT(job.measured(1), SizeIs(1));
  EXPECT_LE(std::abs(job.measured(1)[0].to_rank0_ns - job.TrueNs(1)), job.measured(1)[0].error_ns);
  job.Run();  // the answer to the old question comes as well, and does not count
  ASSERT_THAT(job.measured(1), SizeIs(2));
  EXPECT_EQ(job.sent(1), 4 + ClockMeter::kQuestions);
}

TEST(ClockMeterTest, WrongMessagesHaveNoEffect) {
  Job job(16, 5);
  const Bytes ring = {std::byte{1}, std::byte{0}, std::byte{0}, std::byte{0}};
  EXPECT_FALSE(job.at(3).OnMessage(ring));
  EXPECT_FALSE(job.at(3).OnMessage({}));
  job.Measure();
  const std::vector<Bytes> right = job.UnderWay();
  job.Run();
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    Bytes wrong = right[random() % right.size()];
    for (uint64_t k = 0; k <= random() % 4; ++k) {
      wrong[4 + random() % (wrong.size() - 4)] = std::byte(random() & 0xff);
    }
    if (random() % 16 == 0) wrong.resize(4 + random() % 21);
    // The job checks the next rank of a message, which must never go round in circles.
    EXPECT_TRUE(job.at(static_cast<int>(random() % 16)).OnMessage(wrong));
    job.Run();
  }
  for (int rank = 1; rank < 16; ++rank) EXPECT_THAT(job.measured(rank), SizeIs(1));
}

}  // namespace
}  // namespace tutti::coordinator
