// Hosts that fall silent while the ranks find one another: both ends notice, and nobody waits for
// the time-out of the initialisation. Connections to the root that are reset: they are made again.

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "bootstrap/testing/thread_ranks.h"
#include "bootstrap/testing/witness.h"
#include "sys/tcp.h"
#include "testing/connections.h"

namespace tutti {
namespace {

using ::testing::AnyOf;
using testing::Connections;
using ::testing::HasSubstr;
using testing::HeldTimersLoop;
using testing::Job;
using testing::Listeners;
using testing::Soon;
using testing::Swallow;

constexpr int kRanks = 3;

Settings Impatient() {
  Settings settings = testing::LocalSettings();
  settings.host_timeout_s = 2;
  return settings;
}

// A job whose ranks join one after another.
class SilentHostTest : public ::testing::Test {
 protected:
  explicit SilentHostTest(int num_roots = 1)
      : job_(kRanks, num_roots, Impatient(), std::make_unique<HeldTimersLoop>()) {}
  ~SilentHostTest() override { AwaitAll(); }

  // Returns when the root waits for more ranks.
  void Register(int rank) {
    Start(rank);
    ASSERT_TRUE(loop().AwaitAsked(rank + 1));
  }
  void Start(int rank) {
    threads_.emplace_back([this, rank] {
      const auto made = job_.Create(rank);
      if (!made.ok()) outcomes_[static_cast<size_t>(rank)] = made.status().message();
    });
  }
  void AwaitAll() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  const std::string& outcome(int rank) const { return outcomes_[static_cast<size_t>(rank)]; }

  // Far longer than the silence, and shorter than the time for the whole start.
  const Deadline early_ = Deadline::AfterSeconds(25);
  const Job job_;
  HeldTimersLoop& loop() const { return static_cast<HeldTimersLoop&>(*job_.loop); }

 private:
  std::vector<std::thread> threads_;
  std::vector<std::string> outcomes_ = std::vector<std::string>(kRanks);
};

// Returns the elements of `all` that are not in `known`.
template <class All, class Known>
std::vector<int> Newer(const All& all, const Known& known) {
  std::vector<int> newer;
  for (const int fd : all)
    if (std::find(known.begin(), known.end(), fd) == known.end()) newer.push_back(fd);
  return newer;
}

TEST_F(SilentHostTest, OfAWaitingRankIsNoticedByTheRootAndTheRank) {
  Register(0);
  const std::set<int> before = Connections();
  Register(1);
  Swallow(Newer(Connections(), before));
  AwaitAll();
  EXPECT_FALSE(early_.Passed());
  EXPECT_THAT(outcome(0), HasSubstr("rank 1 (pid"));
  EXPECT_THAT(outcome(0), HasSubstr("TUTTI_HOST_TIMEOUT_S"));
  EXPECT_THAT(outcome(1), HasSubstr("rank 1 waiting for the root"));
  EXPECT_THAT(outcome(1), HasSubstr("TUTTI_HOST_TIMEOUT_S"));
}

// Rank 2 comes last and makes links to both others.
TEST_F(SilentHostTest, AResetConnectionToTheRootIsMadeAgain) {
  const std::set<int> before = Connections();
  Register(0);
  Register(1);
  for (int round = 1; round <= 2; ++round) {
    for (const int fd : Newer(Connections(), before)) ResetConnection(fd);
    ASSERT_TRUE(loop().AwaitAsked(2 + 2 * round));
  }
  Start(2);
  AwaitAll();
  EXPECT_FALSE(early_.Passed());
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(outcome(rank), "");
}

// Rank 2 registers alone with the second root, and waits at the first root for its neighbours.
class TwoRootsTest : public SilentHostTest {
 protected:
  TwoRootsTest() : SilentHostTest(2) {}
};
TEST_F(TwoRootsTest, AResetLookUpIsAskedAgain) {
  const std::set<int> before = Connections();
  Start(2);
  ASSERT_TRUE(loop().AwaitAsked(2));
  for (const int fd : Newer(Connections(), before)) ResetConnection(fd);
  ASSERT_TRUE(loop().AwaitAsked(3));
  Start(0);
  Start(1);
  AwaitAll();
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(outcome(rank), "");
}

TEST_F(SilentHostTest, ARankThatDoesNotComeAgainAfterAResetIsLost) {
  Register(0);
  const std::set<int> before = Connections();
  Register(1);
  Swallow(Listeners());
  for (const int fd : Newer(Connections(), before)) ResetConnection(fd);
  AwaitAll();
  EXPECT_FALSE(early_.Passed());
  EXPECT_THAT(outcome(0), HasSubstr("rank 1 (pid"));
  EXPECT_THAT(outcome(0), HasSubstr("went away before all ranks had arrived"));
  // Rank 1 may not have heard the end of its handshake before the reset.
  EXPECT_THAT(outcome(1), AnyOf(HasSubstr("rank 1 waiting for the root"),
                                HasSubstr("rank 1 cannot reach the root")));
}

TEST_F(SilentHostTest, OfTheRootEndsTheAttemptToConnect) {
  Swallow(Listeners());
  Start(0);
  AwaitAll();
  EXPECT_FALSE(early_.Passed());
  EXPECT_THAT(outcome(0), HasSubstr("rank 0 cannot reach the root"));
  EXPECT_THAT(outcome(0), HasSubstr("TUTTI_HOST_TIMEOUT_S"));
  EXPECT_THAT(outcome(0), HasSubstr("check the route and the firewall"));
}

// The host of a fixed address may come up later than the ranks.
TEST(SilentHost, OfAFixedRootIsTriedUntilTheDeadline) {
  SocketAddress address = *ParseSocketAddress(fmt::format("127.0.0.1:{}", testing::FreePort()));
  const Result<UniqueFd> silent = Listen(address);
  ASSERT_TRUE(silent.ok()) << silent.status().message();
  Swallow({silent->get()});
  Settings settings = Impatient();
  settings.comm_id = address.ToString();
  settings.comm_key = "the key of this test";
  const auto loop = testing::NewLoop();
  const auto id = Root::Create(*loop, settings);
  ASSERT_TRUE(id.ok()) << id.status().message();
  Bootstrap::Options options;
  options.rank = 1;
  options.num_ranks = 2;
  options.ids = {*id};
  options.deadline = Deadline::AfterSeconds(5);
  EXPECT_FALSE(Bootstrap::Create(*loop, settings, options).ok());
  EXPECT_TRUE(options.deadline.Passed());
}

// No connection between ranks 0 and 1 comes through. Rank 2 reaches both.
TEST_F(SilentHostTest, OfANeighbourIsNoticedByAllRanks) {
  const std::vector<int> before = Listeners();
  Register(0);
  Register(1);
  Swallow(Newer(Listeners(), before));
  Start(2);
  AwaitAll();
  EXPECT_FALSE(early_.Passed());
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_THAT(outcome(rank), HasSubstr("TUTTI_HOST_TIMEOUT_S")) << "rank " << rank;
}

}  // namespace
}  // namespace tutti
