// The parts of a process set, one at a time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/asking_threads.h"
#include "coordinator/mover.h"
#include "coordinator/name_table.h"
#include "coordinator/pending_failures.h"
#include "coordinator/process_set.h"
#include "coordinator/stall_tracker.h"

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Mover::Batch BatchOf(size_t size) { return Mover::Batch(size); }

TEST(MoverTest, OneBatchAtATimeInOrder) {
  Mover mover;
  EXPECT_TRUE(mover.idle());
  EXPECT_FALSE(mover.can_begin());
  mover.Add(BatchOf(1));
  mover.Add(BatchOf(2));
  EXPECT_TRUE(mover.can_begin());
  EXPECT_THAT(mover.Begin(), SizeIs(1));
  EXPECT_FALSE(mover.can_begin());
  EXPECT_FALSE(mover.idle());
  mover.Add(BatchOf(3));
  EXPECT_FALSE(mover.can_begin());
  mover.Done();
  EXPECT_TRUE(mover.can_begin());
  EXPECT_THAT(mover.Begin(), SizeIs(2));
  mover.Done();
  EXPECT_THAT(mover.Begin(), SizeIs(3));
  EXPECT_TRUE(mover.empty());
  EXPECT_FALSE(mover.idle());
  mover.Done();
  EXPECT_TRUE(mover.idle());
}

TEST(PendingFailuresTest, AreBroughtToTheirRoundAndInDoubtUntilItsEnd) {
  PendingFailures failures;
  EXPECT_FALSE(failures.in_doubt());
  failures.Add("early", {1, RankSet::Of(0), "no"}, 3);
  failures.Add("late", {1, RankSet::Of(0), "no"}, 5);
  EXPECT_TRUE(failures.waiting());
  const auto brought_to = [&](uint64_t round) {
    PendingFailures::ByName due;
    failures.BeginRound(round, due);
    std::vector<std::string> names;
    for (const auto& [name, failure] : due) names.push_back(name);
    return names;
  };
  EXPECT_THAT(brought_to(2), IsEmpty());
  failures.EndRound();
  EXPECT_THAT(brought_to(3), ElementsAre("early"));
  failures.EndRound();
  EXPECT_TRUE(failures.in_doubt());
  EXPECT_THAT(brought_to(5), ElementsAre("late"));
  EXPECT_FALSE(failures.waiting());
  EXPECT_TRUE(failures.in_doubt());
  failures.EndRound();
  EXPECT_FALSE(failures.in_doubt());
}

TEST(PendingFailuresTest, ResponsesAreHeldUntilTheirCheckIsDecided) {
  PendingFailures failures;
  const auto hold = [&](uint64_t check) {
    Response response;
    response.check = check;
    failures.Hold(std::move(response));
  };
  EXPECT_TRUE(failures.IsDecided(0));
  EXPECT_FALSE(failures.IsDecided(1));
  hold(1);
  hold(2);
  hold(3);
  EXPECT_THAT(failures.TakeDecided(), IsEmpty());
  failures.Decide(2);
  EXPECT_THAT(failures.TakeDecided(), SizeIs(2));
  EXPECT_THAT(failures.TakeDecided(/*all=*/true), SizeIs(1));
  EXPECT_THAT(failures.TakeDecided(/*all=*/true), IsEmpty());
}

TEST(StallTrackerTest, TheLimitLeavesTimeForALastCallWhereThereAreOtherSets) {
  constexpr int64_t kSecond = 1'000'000'000;
  const std::vector<int> members = {0, 1};
  StallTracker stalls({.warn_ns = kSecond, .shutdown_ns = 10 * kSecond}, 0, members);
  using State = StallTracker::State;
  EXPECT_EQ(stalls.Advance(1000 * kSecond, true), State::kWithinLimit);  // nothing is pending
  stalls.NoteAsked(1 * kSecond);
  stalls.NoteAsked(2 * kSecond);
  EXPECT_EQ(stalls.Advance(10 * kSecond, true), State::kWithinLimit);
  EXPECT_EQ(stalls.Advance(11 * kSecond, true), State::kLastCall);
  EXPECT_EQ(stalls.Advance(15 * kSecond, true), State::kLastCall);
  EXPECT_EQ(stalls.Advance(16 * kSecond, true), State::kOverdue);
  stalls.SetOldest(15 * kSecond);
  EXPECT_EQ(stalls.Advance(17 * kSecond, true), State::kWithinLimit);
  EXPECT_EQ(stalls.Advance(25 * kSecond, false), State::kOverdue);
  EXPECT_TRUE(stalls.IsLate(kSecond));
  EXPECT_FALSE(stalls.IsOverdue(9 * kSecond));
}

TEST(StallTrackerTest, TheLowestRankThatWaitsReportsOnceAWindow) {
  constexpr int64_t kWindowNs = 60'000'000'000;
  const std::vector<int> members = {0, 1, 2};
  RoundResult result;
  result.stalls.push_back({"late", RankSet::Of(0), RankSet::Of(1)});
  result.stalls[0].have.Add(2);
  for (const int rank : {0, 1, 2}) {
    StallTracker stalls({.warn_ns = kWindowNs}, rank, members);
    NameTable names;
    names.Enter("late");
    ::testing::internal::CaptureStderr();
    stalls.Report(result, names);
    const std::string first = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(first.find("\"late\" has waited") != first.npos, rank == 0) << first;
    ::testing::internal::CaptureStderr();
    stalls.Report(result, names);  // another rank's window makes a check in this one's
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  }
}

TEST(StallTrackerTest, TheSentenceOfTheLimitNamesTheOldestAndWhoIsMissing) {
  const std::vector<int> members = {3, 4};
  StallTracker stalls({.warn_ns = 1'000'000'000, .shutdown_ns = 1'500'000'000}, 0, members);
  NameTable names;
  EXPECT_EQ(stalls.OverdueText(names), "an operation was stalled for 1.5 s");
  std::vector<std::unique_ptr<Tensor>> tensors;
  for (const char* const name : {"late", "later"}) {
    tensors.push_back(std::make_unique<Tensor>());
    tensors.back()->name = name;
    tensors.back()->since_ns = static_cast<int64_t>(tensors.size());
    tensors.back()->ticket = TicketHold::Make();
    names.Enter(name).pending = tensors.back().get();
  }
  RoundResult result;
  result.stalls.push_back({"late", RankSet::Of(0), RankSet::Of(1)});
  stalls.Report(result, names);
  EXPECT_EQ(stalls.OverdueText(names),
            "\"late\" was stalled for 1.5 s for want of rank 4, the limit that is set");
}

TEST(NameTableTest, RemembersTheOrderAndForgets) {
  NameTable names;
  for (int step = 0; step < 3; ++step) {
    for (const char* const name : {"a", "b", "c"}) EXPECT_EQ(names.Enter(name).name, name);
  }
  // Another order than the last time.
  for (const char* const name : {"a", "c", "b", "a"}) EXPECT_EQ(names.Enter(name).name, name);
  names.Forget("b");
  EXPECT_EQ(names.Find("b"), nullptr);
  EXPECT_EQ(names.size(), 2u);
  for (const char* const name : {"a", "b", "c"}) EXPECT_EQ(names.Enter(name).name, name);
  EXPECT_EQ(names.Find("c"), &names.Enter("c"));
}

TEST(NameTableTest, TrimLeavesWhatIsPending) {
  NameTable names;
  Tensor tensor;
  names.Enter("pending").pending = &tensor;
  for (int i = 0; i < 16'383; ++i) names.Enter(std::to_string(i));
  names.Trim();
  EXPECT_EQ(names.size(), 16'384u);
  names.Enter("one more");
  names.Trim();
  EXPECT_EQ(names.size(), 1u);
  EXPECT_NE(names.Find("pending"), nullptr);
}

TEST(AskingThreadsTest, KnowsWhichTicketsAreAwaited) {
  AskingThreads threads;
  const TicketHold ticket = TicketHold::Make(), other = TicketHold::Make();
  threads.NoteAsking();
  EXPECT_THAT(threads.askers(), SizeIs(1));
  threads.BeginWait(*ticket);
  threads.BeginWait(*ticket);
  EXPECT_TRUE(threads.IsAwaited(*ticket));
  EXPECT_FALSE(threads.IsAwaited(*other));
  EXPECT_EQ(threads.num_waits(), 2u);
  EXPECT_EQ(threads.Blocked(), threads.askers());
  threads.EndWait(*ticket);
  threads.EndWait(*ticket);
  threads.EndWait(*ticket);
  EXPECT_EQ(threads.num_waits(), 0u);
}

// An exchange of one rank that calls a function in every round.
class HookedExchange final : public Exchange {
 public:
  explicit HookedExchange(std::function<void()> hook) : hook_(std::move(hook)) {}
  std::string_view name() const override { return "hooked"; }
  int rank() const override { return 0; }
  int num_ranks() const override { return 1; }
  Status Min(std::span<uint8_t>) override {
    hook_();
    return Status::Ok();
  }
  Result<Bytes> Swap(int, std::span<const std::byte> bytes, int) override {
    return Bytes(bytes.begin(), bytes.end());
  }

 private:
  const std::function<void()> hook_;
};

// An exhausted memory inside a round ends the set. Without the end, all later waits would hang
// behind a driver that is gone.
TEST(ProcessSetTest, AnExceptionInARoundEndsTheSet) {
  Timeline timeline{0};
  ProcessSet::Options options;
  options.members = {0};
  ProcessSet::Hooks hooks;
  int broken_off = 0;
  hooks.call_to_round = [](uint64_t) {};
  hooks.break_off = [&] { ++broken_off; };
  ProcessSet set(options, std::make_unique<HookedExchange>([] { throw std::bad_alloc(); }), {},
                 hooks, &timeline, nullptr);
  const TicketHold ticket = TicketHold::Make();
  TicketHold shared = ticket.Share();
  const tuttiTensor_t barrier = MakeTensor("barrier", OpKind::kBarrier);
  ASSERT_TRUE(set.Enqueue({&barrier, 1}, nullptr, {&shared, 1}).ok());
  EXPECT_TRUE(set.Wait(*ticket));
  EXPECT_EQ(ticket->status.code(), Code::kSystemError);
  EXPECT_TRUE(set.AwaitEnd(Deadline::AfterSeconds(20)));
  EXPECT_EQ(set.ended().code(), Code::kSystemError);
  EXPECT_EQ(broken_off, 1);
}

}  // namespace
}  // namespace tutti::coordinator
