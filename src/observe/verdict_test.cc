#include "observe/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kPatienceNs = 2 * kSecondNs;
constexpr int64_t kNowNs = 1000 * kSecondNs;

OpSignature AllReduceOf(uint64_t sequence, uint64_t count = 4) {
  OpSignature signature;
  signature.sequence = sequence;
  signature.count = count;
  signature.type = DataType::kFloat32;
  return signature;
}

// Ranks of a communicator, all of them idle after four collectives, in two equal readings.
class VerdictTest : public ::testing::Test {
 protected:
  explicit VerdictTest(int num_ranks = 4) {
    view_.id = 7;
    view_.num_ranks = num_ranks;
    view_.at_ns = kNowNs;
    for (int rank = 0; rank < num_ranks; ++rank) {
      view_.names.push_back({"node", 100 + rank});
      CommunicatorSnapshot snapshot;
      snapshot.id = 7;
      snapshot.rank = rank;
      snapshot.num_ranks = num_ranks;
      snapshot.phase = Phase::kInOperation;
      for (uint64_t i = 1; i <= 4; ++i) snapshot.recent.push_back(AllReduceOf(i));
      snapshot.begun = 4;
      view_.ranks.push_back({.rank = rank,
                             .process = {100 + rank, 1, 1},
                             .life = Life::kRunning,
                             .snapshot = snapshot,
                             .elsewhere = {}});
    }
  }

  RankView& rank(int number) { return view_.ranks[static_cast<size_t>(number)]; }
  CommunicatorSnapshot& snapshot(int number) { return *rank(number).snapshot; }
  // Has a rank begin the next collective.
  void Enter(int number, uint64_t count = 4) {
    CommunicatorSnapshot& one = snapshot(number);
    one.recent.push_back(AllReduceOf(++one.begun, count));
    one.in_collective = true;
  }
  void Await(int number, std::vector<int> ranks, int64_t for_ns = 12 * kSecondNs) {
    const int count = static_cast<int>(ranks.size());
    snapshot(number).wait = WaitSnapshot{kNowNs - for_ns, kNowNs, count, std::move(ranks)};
  }
  void EnterAndAwait(int number, std::vector<int> ranks) {
    Enter(number);
    Await(number, std::move(ranks));
  }
  Verdict JudgeStill() const { return Judge(view_, view_, kPatienceNs); }

  CommunicatorView view_;
};

TEST_F(VerdictTest, FindsNothingWrongWithIdleRanks) {
  EXPECT_EQ(JudgeStill().finding, Finding::kNothingWrong);
  EXPECT_FALSE(JudgeStill().IsTrouble());
}

TEST_F(VerdictTest, FindsNothingWrongWithAShortWait) {
  for (const int one : {0, 1, 3}) {
    Enter(one);
    Await(one, {2}, kPatienceNs / 2);
  }
  EXPECT_EQ(JudgeStill().finding, Finding::kNothingWrong);
  EXPECT_TRUE(AnyHeldUp(view_, view_));
}

TEST_F(VerdictTest, NamesTheRankThatNeverEntered) {
  for (const int one : {0, 1, 3}) EnterAndAwait(one, {2});
  rank(2).elsewhere = "in collective number 3 of communicator X";
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNeverEntered);
  EXPECT_TRUE(verdict.IsTrouble());
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_EQ(verdict.since_ns, kNowNs - 12 * kSecondNs);
  EXPECT_THAT(verdict.sentence,
              HasSubstr("rank 2 (host node, pid 102) has not entered collective number 5, "
                        "AllReduce(count 4, float32), and rank 0"));
  EXPECT_THAT(verdict.sentence, HasSubstr("held up for 12.0 s"));
  EXPECT_THAT(verdict.sentence, HasSubstr("idle after collective number 4"));
  EXPECT_THAT(verdict.sentence, HasSubstr("in collective number 3 of communicator X"));
}

TEST_F(VerdictTest, NamesTheRanksThatHaveNotLeft) {
  for (const int one : {1, 2}) EnterAndAwait(one, {0});
  for (const int one : {0, 3}) {
    Enter(one);
    snapshot(one).in_collective = false;
  }
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNotLeft);
  EXPECT_THAT(verdict.culprits, ElementsAre(1, 2));
}

TEST_F(VerdictTest, NamesARankThatIsStillInAnEarlierCollective) {
  Enter(2);
  for (const int one : {0, 1, 3}) {
    Enter(one);
    EnterAndAwait(one, {2});
  }
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNotLeft);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_THAT(verdict.sentence, HasSubstr("has not left collective number 5"));
}

TEST_F(VerdictTest, NamesTheRankThatDoesNotWaitAmongAllThatAreInside) {
  Enter(2);
  EnterAndAwait(0, {1});
  EnterAndAwait(1, {2});
  EnterAndAwait(3, {0});
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNotLeft);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
}

TEST_F(VerdictTest, BlamesTheWayOfTheDataWhereAllWaitInACircle) {
  for (int one = 0; one < 4; ++one) EnterAndAwait(one, {(one + 1) % 4});
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNotMoved);
  EXPECT_THAT(verdict.culprits, IsEmpty());
  EXPECT_THAT(verdict.sentence, HasSubstr("data do not move"));
}

TEST_F(VerdictTest, NamesARankOfAnotherMachine) {
  for (int one = 0; one < 4; ++one) EnterAndAwait(one, {3});
  view_.ranks.pop_back();
  view_.names[3] = {"far", 9};
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNotMoved);
  EXPECT_THAT(verdict.culprits, ElementsAre(3));
  EXPECT_THAT(verdict.sentence, HasSubstr("rank 3 (host far, pid 9), which has no board here"));
}

TEST_F(VerdictTest, ShowsBothSidesOfAMismatch) {
  for (const int one : {0, 1, 3}) Enter(one);
  Enter(2, 8);
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kOtherSignature);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_THAT(verdict.sentence, HasSubstr("as collective number 5, rank 2 (host node, pid 102) "
                                          "called AllReduce(count 8, float32"));
  EXPECT_THAT(verdict.sentence, HasSubstr("rank 3 (host node, pid 103) called AllReduce(count 4"));
}

TEST_F(VerdictTest, NamesBothSidesOfAMismatchOfEquallyManyRanks) {
  Enter(1);
  Enter(2, 8);
  EXPECT_EQ(JudgeStill().finding, Finding::kOtherSignature);
  EXPECT_THAT(JudgeStill().culprits, ElementsAre(1, 2));
}

TEST_F(VerdictTest, PutsAMismatchBeforeTheStopThatFollows) {
  for (const int one : {0, 1, 3}) Enter(one);
  Enter(2, 8);
  for (int one = 0; one < 4; ++one) {
    snapshot(one).phase = Phase::kStopped;
    snapshot(one).reason = "mismatched collectives";
  }
  rank(1).life = Life::kEnded;  // after its error
  EXPECT_EQ(JudgeStill().finding, Finding::kOtherSignature);
}

TEST_F(VerdictTest, NamesADeadRank) {
  for (const int one : {0, 1, 3}) EnterAndAwait(one, {2});
  rank(2).life = Life::kEnded;
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kDead);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_THAT(verdict.sentence, HasSubstr("idle after collective number 4"));
  rank(2).snapshot.reset();  // It left no board.
  EXPECT_EQ(JudgeStill().finding, Finding::kDead);
}

TEST_F(VerdictTest, NamesAStoppedRankAndNobodyWhereAllAreStopped) {
  for (const int one : {0, 1, 3}) EnterAndAwait(one, {2});
  rank(2).life = Life::kStopped;
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kStopped);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  for (int one = 0; one < 4; ++one) rank(one).life = Life::kStopped;
  EXPECT_EQ(JudgeStill().finding, Finding::kStopped);
  EXPECT_THAT(JudgeStill().culprits, IsEmpty());
}

TEST_F(VerdictTest, GivesTheFirstReasonOfAStop) {
  for (int one = 0; one < 4; ++one) {
    snapshot(one).phase = Phase::kStopped;
    snapshot(one).phase_since_ns = kNowNs - one * kSecondNs;
    snapshot(one).reason = "reason " + std::to_string(one);
  }
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kFailed);
  EXPECT_THAT(verdict.sentence, HasSubstr("reason 3"));
}

TEST_F(VerdictTest, CallsARankSlowWhereOperationsGoOn) {
  for (const int one : {0, 1, 3}) EnterAndAwait(one, {2});
  const CommunicatorView earlier = view_;
  Enter(2);
  for (const int one : {0, 1, 3}) {
    snapshot(one).wait.reset();
    Enter(one);
  }
  const Verdict verdict = Judge(earlier, view_, kPatienceNs);
  EXPECT_EQ(verdict.finding, Finding::kOnlySlow);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_FALSE(verdict.IsTrouble());
  EXPECT_FALSE(AnyHeldUp(earlier, view_));
}

// The board of any rank may show the slow ranks; a board that was left behind does not count, and
// the slow ranks of a job that stands still cost nothing.
TEST_F(VerdictTest, NamesTheRanksThatTheLibraryFoundToBeSlow) {
  const SlowSnapshot slow = {
      .since_ns = 1, .per_collective_ns = 3'100'000, .share = 0.754, .ranks = {2}};
  rank(1).life = Life::kEnded;
  snapshot(1).slow = slow;
  EXPECT_EQ(view_.slow(), nullptr);
  rank(1).life = Life::kRunning;
  EXPECT_EQ(JudgeStill().finding, Finding::kNothingWrong);
  const CommunicatorView earlier = view_;
  ++snapshot(0).begun;
  const Verdict verdict = Judge(earlier, view_, kPatienceNs);
  EXPECT_EQ(verdict.finding, Finding::kOnlySlow);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_THAT(verdict.sentence, HasSubstr("rank 2 (host node, pid 102) keeps the others waiting, "
                                          "3.10 ms in each collective, 75 % of the time"));
  EXPECT_FALSE(verdict.IsTrouble());
}

TEST_F(VerdictTest, IgnoresAWaitThatIsOver) {
  for (const int one : {0, 1, 3}) {
    EnterAndAwait(one, {2});
    snapshot(one).wait->seen_ns = kNowNs - 5 * kSecondNs;
  }
  EXPECT_EQ(JudgeStill().finding, Finding::kNothingWrong);
}

TEST_F(VerdictTest, NamesTheRankOutsideOfACallOfAllRanks) {
  for (const int one : {0, 1, 3}) {
    snapshot(one).step = "in ncclCommSplit";
    snapshot(one).step_since_ns = kNowNs - 12 * kSecondNs;
  }
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNeverEntered);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  EXPECT_THAT(verdict.sentence, HasSubstr("in ncclCommSplit"));
  snapshot(2).step = "in ncclCommSplit";
  EXPECT_EQ(JudgeStill().finding, Finding::kNotMoved);
}

TEST_F(VerdictTest, NamesTheRanksThatDoNotComeToTheMaking) {
  for (int one = 0; one < 4; ++one) {
    snapshot(one).phase = Phase::kBeingMade;
    snapshot(one).phase_since_ns = kNowNs - 12 * kSecondNs;
  }
  view_.ranks.erase(view_.ranks.begin() + 2);
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNeverEntered);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
}

TEST_F(VerdictTest, FollowsTheWaitsForMessages) {
  for (const int one : {0, 1}) {
    snapshot(one).messages_begun = 1;
    snapshot(one).messages_under_way = 1;
    Await(one, {one + 1});
  }
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNeverEntered);
  EXPECT_THAT(verdict.culprits, ElementsAre(2));
  // Ranks 0 and 1 wait for each other.
  snapshot(1).wait->ranks = {0};
  EXPECT_EQ(JudgeStill().finding, Finding::kNotMoved);
}

TEST_F(VerdictTest, FollowsTheMessagesOfARankThatIsBehind) {
  for (const int one : {0, 1}) EnterAndAwait(one, {2});
  snapshot(2).messages_begun = 1;
  snapshot(2).messages_under_way = 1;
  Await(2, {3});
  const Verdict verdict = JudgeStill();
  EXPECT_EQ(verdict.finding, Finding::kNeverEntered);
  EXPECT_THAT(verdict.culprits, ElementsAre(3));
}

}  // namespace
}  // namespace tutti::observe
