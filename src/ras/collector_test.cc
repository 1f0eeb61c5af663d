#include "ras/collector.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti::ras {
namespace {

using Seat = Collector::Seat;

constexpr int64_t kPatience = 10, kDeadline = 1000;

// Communicator 7 has two ranks on each of the hosts a, b and c; this process is rank 0.
class CollectorTest : public ::testing::Test {
 protected:
  static std::string HostOf(int rank) { return std::string(1, static_cast<char>('a' + rank / 2)); }
  // The part of the report that these ranks tell.
  static Report PartOf(const std::vector<int>& ranks) {
    Report report;
    CommunicatorState& state = report.communicators[7];
    state.num_ranks = 6;
    for (const int rank : ranks) {
      const ProcessName process = {HostOf(rank), 100 + rank};
      report.heard.insert(process);
      state.ranks[rank].process = process;
    }
    return report;
  }
  static Report OwnPart() {
    Report report = PartOf({0, 1});
    for (int rank = 0; rank < 6; ++rank)
      report.communicators[7].names[rank] = {HostOf(rank), 100 + rank};
    return report;
  }

  Collector Make(Report own) {
    return Collector(
        std::move(own), silent_,
        [this](const Seat& seat, uint64_t question) {
          asked_.push_back(seat.second);
          questions_.push_back(question);
          return knows_all_;
        },
        next_question_, kPatience, kDeadline);
  }

  std::set<Seat> silent_;
  uint64_t next_question_ = 1;
  std::vector<int> asked_;
  std::vector<uint64_t> questions_;
  bool knows_all_ = true;
};

TEST_F(CollectorTest, AsksOneRankOfEveryOtherHost) {
  Collector collector = Make(OwnPart());
  EXPECT_EQ(collector.Advance(0), kPatience);
  EXPECT_EQ(asked_, (std::vector<int>{2, 4}));
  EXPECT_TRUE(collector.OnAnswer(questions_[0], PartOf({2, 3})));
  EXPECT_EQ(collector.Advance(1), kPatience);
  EXPECT_TRUE(collector.OnAnswer(questions_[1], PartOf({4, 5})));
  EXPECT_EQ(collector.Advance(2), 0);
  EXPECT_EQ(asked_.size(), 2u);
  EXPECT_EQ(collector.report().communicators.at(7).ranks.size(), 6u);
  EXPECT_EQ(collector.num_timeouts(), 0);
}

TEST_F(CollectorTest, AsksTheOthersOfAHostThatDoesNotAnswer) {
  Collector collector = Make(OwnPart());
  collector.Advance(0);
  collector.OnAnswer(questions_[1], PartOf({4, 5}));
  EXPECT_EQ(collector.Advance(kPatience), 2 * kPatience);
  EXPECT_EQ(asked_, (std::vector<int>{2, 4, 3}));
  collector.OnAnswer(questions_[2], PartOf({3}));
  EXPECT_EQ(collector.Advance(kPatience + 1), 0);
  EXPECT_EQ(collector.num_timeouts(), 1);
  EXPECT_EQ(silent_, (std::set<Seat>{{7, 2}}));
}

TEST_F(CollectorTest, ARankThatTheFirstDoesNotKnowIsAskedItself) {
  Collector collector = Make(OwnPart());
  collector.Advance(0);
  collector.OnAnswer(questions_[0], PartOf({2}));
  collector.OnAnswer(questions_[1], PartOf({4, 5}));
  EXPECT_EQ(collector.Advance(1), 1 + kPatience);
  EXPECT_EQ(asked_, (std::vector<int>{2, 4, 3}));
}

TEST_F(CollectorTest, ASilentRankIsNotWaitedForAgain) {
  silent_ = {{7, 2}, {7, 3}};
  Collector collector = Make(OwnPart());
  EXPECT_EQ(collector.Advance(0), kPatience);
  EXPECT_EQ(asked_, (std::vector<int>{2, 3, 4}));
  collector.OnAnswer(questions_[2], PartOf({4, 5}));
  EXPECT_EQ(collector.Advance(1), 0);
  EXPECT_EQ(collector.num_timeouts(), 2);
  EXPECT_TRUE(collector.OnAnswer(questions_[0], PartOf({2})));  // A late answer counts.
  EXPECT_EQ(collector.report().communicators.at(7).ranks.size(), 5u);
}

TEST_F(CollectorTest, DeadRanksAndForeignCommunicatorsAreNotWaitedFor) {
  Report own = OwnPart();
  own.communicators[7].dead = {2, 3};
  Collector collector = Make(own);
  collector.Advance(0);
  EXPECT_EQ(asked_, (std::vector<int>{4}));
  knows_all_ = false;
  asked_.clear();
  Collector stranger = Make(OwnPart());
  EXPECT_EQ(stranger.Advance(0), 0);
  EXPECT_EQ(asked_, (std::vector<int>{2, 3, 4, 5}));  // Another rank of the host may have a link.
}

TEST_F(CollectorTest, TheDeadlineEndsTheCollection) {
  Collector collector = Make(OwnPart());
  collector.Advance(kDeadline - 1);
  EXPECT_EQ(collector.Advance(kDeadline), 0);
  EXPECT_EQ(collector.num_timeouts(), 2);
  EXPECT_TRUE(silent_.empty());  // The ranks had a moment only.
  Collector patient = Make(OwnPart());
  patient.Advance(kDeadline - kPatience);
  EXPECT_EQ(patient.Advance(kDeadline), 0);
  EXPECT_EQ(silent_.size(), 2u);
}

TEST_F(CollectorTest, ManyRanksOfUnknownHostsAreAskedAFewAtATime) {
  Report own = PartOf({0});
  own.communicators[7].num_ranks = 1000;
  Collector collector = Make(own);
  collector.Advance(0);
  EXPECT_EQ(asked_.size(), Collector::kMostAsked);
}

}  // namespace
}  // namespace tutti::ras
