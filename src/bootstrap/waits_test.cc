// The ends of waits over the bootstrap: at the time-out, and at once where a rank is known not to
// come; and the names of ranks in communicators that are being made.

#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/testing/thread_ranks.h"
#include "testing/threads.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using testing::Job;

constexpr int kRanks = 4;

Deadline Soon() { return Deadline::AfterSeconds(60); }

// Ranks 3 and 1, in this order, make a child. Rank 3 takes part alone.
constexpr int kHere = 3, kAwaited = 1;
std::unique_ptr<Bootstrap> MakeChild(Bootstrap& parent) {
  return parent.CreateChild(/*child_id=*/7, {kHere, kAwaited}, nullptr);
}

std::string TextOf(const Status& status) {
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(BootstrapWaits, AChildInTheMakingNamesRanksByTheParentsNumbers) {
  const Job job(kRanks);
  auto ranks = job.CreateAll();
  const auto child = MakeChild(*ranks[kHere]);
  const Status over = child->Barrier(Deadline::AfterSeconds(0.1));
  EXPECT_EQ(over.code(), Code::kTimeout);
  EXPECT_THAT(TextOf(over),
              ::testing::MatchesRegex("rank 3 .*of the parent communicator has waited "
                                      ".* for a message of rank 1 .*of the parent "
                                      "communicator.*"));
  // The child has numbers of its own once it is made.
  ASSERT_TRUE(child->Complete().ok());
  const Status made = child->Barrier(Deadline::AfterSeconds(0.1));
  EXPECT_THAT(TextOf(made), HasSubstr("for a message of rank 1 ("));
  EXPECT_THAT(TextOf(made), ::testing::Not(HasSubstr("parent")));
}

TEST(BootstrapWaits, AWaitByOtherMeansIsFollowedAsAMessage) {
  const Job job(kRanks);
  auto ranks = job.CreateAll();
  const auto end = [&](int awaited, Deadline deadline) {
    const auto follow = ranks[0]->FollowWait("the memory of", awaited, deadline, nullptr);
    Status followed;
    for (const Deadline soon = Soon(); followed.ok() && !soon.Passed();) followed = follow();
    return followed;
  };
  const Status over = end(1, Deadline::AfterSeconds(0.1));
  EXPECT_EQ(over.code(), Code::kTimeout);
  EXPECT_THAT(TextOf(over), HasSubstr("for the memory of rank 1 ("));
  ranks[2].reset();
  const Status left = end(2, Deadline::Never());
  EXPECT_EQ(left.code(), Code::kRemoteError);
  EXPECT_THAT(TextOf(left), HasSubstr("rank 2"));
}

// Rank 1 does not take part. Ranks 2 and 3 wait for rank 1, and rank 0 for rank 2.
TEST(BootstrapWaits, AFirstCommunicatorInTheMakingNamesTheRankThatHoldsUpAll) {
  const Job job(kRanks);
  std::vector<std::unique_ptr<Bootstrap>> ranks(kRanks);
  testing::ForEach(kRanks, [&](int rank) {
    ranks[static_cast<size_t>(rank)] = std::move(job.Create(rank)).value();
  });
  testing::ForEach(kRanks, [&](int rank) {
    if (rank == kAwaited) return;
    const Status over = ranks[static_cast<size_t>(rank)]->Barrier(Deadline::AfterSeconds(2));
    EXPECT_EQ(over.code(), Code::kTimeout);
    EXPECT_THAT(TextOf(over), HasSubstr("rank 1 ("));
  });
  // Rank 2 has just told that rank 1 holds it up. Number 1 of a child is another rank.
  const auto child = ranks[0]->CreateChild(/*child_id=*/7, {0, 3, 2}, nullptr);
  const std::string text = TextOf(child->Barrier(Deadline::AfterSeconds(0.1)));
  EXPECT_THAT(text, HasSubstr("for a message of rank 2 "));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("held up by")));
}

// A rank leaves the parent before or while another waits for it in the making of a child. The
// process of the rank lives on in another communicator, or ends its last one.
struct Leaving {
  bool while_waiting;
  bool lives_on;
};

class LeavingTest : public ::testing::TestWithParam<Leaving> {};

TEST_P(LeavingTest, EndsTheWaitForTheRankAtOnce) {
  const Job job(kRanks);
  auto ranks = job.CreateAll();
  std::unique_ptr<Bootstrap> other;
  if (GetParam().lives_on) other = ranks[kAwaited]->CreateChild(8, {kAwaited, 2}, nullptr);
  const auto child = MakeChild(*ranks[kHere]);
  std::thread leaver;
  if (GetParam().while_waiting)
    leaver = std::thread([&, waiter = testing::ThisThread()] {
      EXPECT_TRUE(testing::AwaitAsleep(waiter));
      ranks[kAwaited].reset();
    });
  else
    ranks[kAwaited].reset();
  const Deadline deadline = Soon();
  const Status over = child->Barrier(deadline);
  EXPECT_FALSE(deadline.Passed());
  EXPECT_EQ(over.code(), Code::kRemoteError);
  EXPECT_THAT(TextOf(over), HasSubstr("rank 1 ("));
  EXPECT_THAT(TextOf(over), HasSubstr("takes no part"));
  if (leaver.joinable()) leaver.join();
}

INSTANTIATE_TEST_SUITE_P(Ways, LeavingTest,
                         ::testing::Values(Leaving{false, false}, Leaving{false, true},
                                           Leaving{true, false}, Leaving{true, true}));

// Ranks 0 and 3 of 8 have no link when rank 3 leaves.
TEST(BootstrapWaits, ARankThatAsksALeftRankHearsItsGoodbye) {
  const Job job(8);
  auto ranks = job.CreateAll();
  const auto other = ranks[3]->CreateChild(8, {3, 4}, nullptr);
  ranks[3].reset();
  std::promise<int> left;
  std::atomic<bool> told = false;
  ranks[0]->SetEvents({.ranks_lost = {},
                       .peer_left =
                           [&](int rank) {
                             if (!told.exchange(true)) left.set_value(rank);
                           },
                       .control = {},
                       .failed = {}});
  ranks[0]->SendControl(3, testing::ToBytes("are you here?"));
  EXPECT_EQ(left.get_future().get(), 3);
  ranks[0]->SetEvents({});
  job.loop->RunSync([] {});
}

// Keeps what it hears, and ends the wait after the second look.
class Listener final : public WaitListener {
 public:
  Status OnJointWait(int rank, LongWait& wait, int64_t timeout_ns) override {
    ranks.push_back(rank);
    timeouts_ns.push_back(timeout_ns);
    EXPECT_FALSE(wait.Look(NowNs(), timeout_ns).over);
    return ranks.size() < 2 ? Status::Ok() : Timeout("the listener has had enough");
  }
  std::vector<int> ranks;
  std::vector<int64_t> timeouts_ns;
};

TEST(BootstrapWaits, TheListenerOfTheParentHearsOfWaitsOfTheChild) {
  const Job job(kRanks);
  auto ranks = job.CreateAll();
  Listener listener;
  ranks[kHere]->SetWaitListener(&listener);
  const auto child = MakeChild(*ranks[kHere]);
  EXPECT_EQ(child->Barrier(Soon()).message(), "the listener has had enough");
  EXPECT_EQ(listener.ranks, (std::vector<int>{kAwaited, kAwaited}));
  EXPECT_GT(listener.timeouts_ns[0], 50'000'000'000);
  EXPECT_LE(listener.timeouts_ns[0], 60'000'000'000);
  ranks[kHere]->SetWaitListener(nullptr);
}

}  // namespace
}  // namespace tutti
