#include "run/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace tutti::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Kind = Action::Kind;

// A job whose workers follow a script of the test; time moves by hand.
class Job {
 public:
  explicit Job(MembershipOptions options, std::vector<HostSlots> hosts)
      : membership_(options, now_ns_) {
    membership_.SetHosts(hosts);
    Go();
  }

  void Go(double seconds = 0) {
    now_ns_ += static_cast<int64_t>(seconds * 1e9);
    for (const Action& action : membership_.Advance(now_ns_)) {
      EXPECT_EQ(finish, "") << "something is to be done after the end";
      if (action.kind == Kind::kStart) started.push_back(action.host);
      if (action.kind == Kind::kTerminate) terminated.insert(action.worker);
      if (action.kind == Kind::kKill) killed.insert(action.worker);
      if (action.kind == Kind::kPublish) {
        generation = action.text;
        generation_size = membership_.generation_size();
      }
      if (action.kind == Kind::kNotice) ++notices;
      if (action.kind == Kind::kBroken) broken = action.text;
      if (action.kind == Kind::kFinish) finish = fmt::format("{} {}", action.status, action.text);
    }
  }
  void Ready(int worker) {
    membership_.WorkerReady(worker, membership_.generation(), now_ns_);
    Go();
  }
  void Exit(int worker, int status) {
    membership_.WorkerExited(worker, status, now_ns_);
    Go();
  }
  void Hosts(const std::vector<HostSlots>& hosts) {
    membership_.SetHosts(hosts);
    Go();
  }

  std::vector<std::string> started;
  std::set<int> terminated;
  std::set<int> killed;
  std::string generation;
  int generation_size = 0;
  std::string broken;
  int notices = 0;
  std::string finish;

 private:
  int64_t now_ns_ = 1'000'000'000;
  Membership membership_;
};

MembershipOptions Between(int min_workers, int max_workers) {
  MembershipOptions options;
  options.min_workers = min_workers;
  options.max_workers = max_workers;
  return options;
}

TEST(Membership, BeginsWhenAllThatWereStartedAreReady) {
  Job job(Between(2, 3), {{"a", 2}, {"b", 2}});
  EXPECT_THAT(job.started, ElementsAre("a", "a", "b"));
  job.Ready(2);
  job.Ready(0);
  EXPECT_EQ(job.generation, "");
  job.Ready(1);
  EXPECT_EQ(job.generation, "1 0\n0 a\n1 a\n2 b\n");
  job.Exit(0, 0);
  job.Exit(2, 0);
  EXPECT_EQ(job.finish, "");
  job.Exit(1, 0);
  EXPECT_EQ(job.finish, "0 ");
}

TEST(Membership, AFailedHostLosesItsOtherWorkersWhereThatIsAskedFor) {
  MembershipOptions options = Between(1, 4);
  options.end_failed_hosts = true;
  options.cooldown_min_s = options.cooldown_max_s = 0;  // 0 means for ever.
  Job job(options, {{"a", 2}, {"b", 2}});
  for (int i = 0; i < 4; ++i) job.Ready(i);
  job.Exit(0, 1);
  for (int i = 1; i < 4; ++i) job.Ready(i);
  EXPECT_EQ(job.generation, "2 1\n2 b\n3 b\ndismissed 1\n");
  job.Exit(1, 0);
  job.Go(1000);
  EXPECT_EQ(job.started.size(), 4u);
  job.Exit(2, 0);
  job.Exit(3, 0);
  EXPECT_EQ(job.finish, "0 ");
}

TEST(Membership, GoesOnWithSurvivorsInOrderAndTakesTheNewcomerLater) {
  MembershipOptions options = Between(2, 3);
  options.cooldown_min_s = 1;
  Job job(options, {{"a", 3}});
  for (int i = 0; i < 3; ++i) job.Ready(i);
  job.Exit(0, 137);
  EXPECT_EQ(job.broken, "1");
  EXPECT_EQ(job.started.size(), 3u);  // the host cools down
  job.Ready(2);
  EXPECT_EQ(job.generation, "1 0\n0 a\n1 a\n2 a\n");
  job.Ready(1);
  EXPECT_EQ(job.generation, "2 0\n1 a\n2 a\n");
  job.Go(1.1);
  EXPECT_EQ(job.started.size(), 4u);
  EXPECT_EQ(job.notices, 0);
  job.Ready(3);
  EXPECT_EQ(job.notices, 1);
  job.Ready(2);
  job.Ready(1);
  EXPECT_EQ(job.generation, "3 1\n1 a\n2 a\n3 a\n");
}

TEST(Membership, CoolDownDoublesAndMayBeForEver) {
  MembershipOptions options = Between(1, 2);
  options.cooldown_min_s = 10;
  options.cooldown_max_s = 15;
  Job job(options, {{"a", 1}, {"b", 1}});
  job.Ready(0);
  job.Ready(1);
  job.Exit(1, 1);
  job.Go(9);
  EXPECT_EQ(job.started.size(), 2u);
  job.Go(2);
  EXPECT_THAT(job.started, ElementsAre("a", "b", "b"));
  job.Exit(2, 1);
  job.Go(14);
  EXPECT_EQ(job.started.size(), 3u);
  job.Go(2);
  EXPECT_EQ(job.started.size(), 4u);

  options.cooldown_max_s = 0;
  Job other(options, {{"a", 1}, {"b", 1}});
  other.Exit(1, 1);
  other.Go(1e6);
  EXPECT_EQ(other.started.size(), 2u);
}

TEST(Membership, HostsThatComeAndGo) {
  Job job(Between(1, 4), {{"a", 1}});
  job.Ready(0);
  EXPECT_EQ(job.generation, "1 0\n0 a\n");
  job.Hosts({{"a", 1}, {"b", 2}});
  job.Ready(1);
  EXPECT_EQ(job.notices, 0);  // another worker boots
  job.Ready(2);
  EXPECT_EQ(job.notices, 1);
  job.Ready(0);
  EXPECT_EQ(job.generation, "2 1\n0 a\n1 b\n2 b\n");
  job.Hosts({{"b", 1}});
  EXPECT_EQ(job.notices, 2);
  for (int i = 0; i < 3; ++i) job.Ready(i);
  EXPECT_EQ(job.generation, "3 2\n1 b\ndismissed 0\ndismissed 2\n");
  job.Exit(0, 0);
  EXPECT_EQ(job.finish, "");
  job.Go(31);
  EXPECT_THAT(job.killed, ElementsAre(2));
  job.Exit(2, 137);
  EXPECT_EQ(job.finish, "");
  job.Exit(1, 0);
  EXPECT_EQ(job.finish, "0 ");
}

TEST(Membership, ASlowNewcomerDoesNotHoldUpTheOther) {
  Job job(Between(1, 3), {{"a", 1}});
  job.Ready(0);
  job.Hosts({{"a", 3}});
  job.Ready(1);
  job.Go(11);
  EXPECT_EQ(job.notices, 1);
}

TEST(Membership, ANewcomerThatIsNotWantedAnyMoreGoesAtOnce) {
  Job job(Between(1, 3), {{"a", 1}});
  job.Ready(0);
  job.Hosts({{"a", 2}});
  job.Hosts({{"a", 1}});
  EXPECT_THAT(job.terminated, ElementsAre(1));
  job.Exit(1, 143);
  EXPECT_EQ(job.notices, 0);
  job.Exit(0, 0);
  EXPECT_EQ(job.finish, "0 ");
}

TEST(Membership, ResetLimit) {
  MembershipOptions options = Between(1, 3);
  options.reset_limit = 1;
  Job job(options, {{"a", 3}});
  for (int i = 0; i < 3; ++i) job.Ready(i);
  job.Exit(0, 1);
  job.Ready(1);
  job.Ready(2);
  EXPECT_EQ(job.generation.substr(0, 2), "2 ");
  job.Exit(2, 9);
  job.Ready(1);
  EXPECT_THAT(job.finish, HasSubstr("9 the job began anew 1 times, which is its limit"));
}

TEST(Membership, TooFewForTooLong) {
  MembershipOptions options = Between(2, 2);
  options.timeout_s = 60;
  options.cooldown_max_s = 0;
  Job job(options, {{"a", 2}});
  job.Ready(0);
  job.Ready(1);
  job.Exit(0, 1);
  job.Ready(1);
  EXPECT_EQ(job.generation.substr(0, 2), "1 ");
  job.Go(61);
  EXPECT_THAT(job.finish, HasSubstr("only 1 of at least 2 workers"));
}

TEST(Membership, NoHostsAreWaitedForAndThenNot) {
  MembershipOptions options = Between(1, 2);
  options.timeout_s = 60;
  Job job(options, {});
  job.Go(59);
  EXPECT_EQ(job.finish, "");
  job.Go(2);
  EXPECT_THAT(job.finish, HasSubstr("only 0 of at least 1"));
}

TEST(Membership, WithoutSurvivorsTheStateIsLost) {
  Job job(Between(1, 2), {{"a", 2}});
  job.Ready(0);
  job.Ready(1);
  job.Exit(0, 3);
  job.Exit(1, 4);
  EXPECT_THAT(job.finish, HasSubstr("4 all workers of a generation failed"));
}

TEST(Membership, NobodyIsStartedWhenTheStateIsLost) {
  Job job(Between(1, 1), {{"a", 1}, {"b", 1}});
  job.Ready(0);
  job.Exit(0, 4);  // b has a slot
  EXPECT_THAT(job.finish, HasSubstr("4 all workers of a generation failed"));
  EXPECT_THAT(job.started, ElementsAre("a"));
}

// A host's name may be any word of the text that is published.
TEST(Membership, CountsTheRanksOfAGeneration) {
  Job job(Between(1, 3), {{"dismissed", 2}, {"b", 1}});
  for (int i = 0; i < 3; ++i) job.Ready(i);
  EXPECT_EQ(job.generation_size, 3);
  job.Hosts({{"dismissed", 1}, {"b", 1}});
  job.Ready(1);
  job.Ready(0);
  job.Ready(2);
  EXPECT_EQ(job.generation, "2 1\n0 dismissed\n2 b\ndismissed 1\n");
  EXPECT_EQ(job.generation_size, 2);
}

TEST(Membership, TheStateIsLostWithTheLastSurvivorThoughNewcomersAreThere) {
  Job job(Between(2, 3), {{"a", 2}});
  job.Ready(0);
  job.Ready(1);
  job.Hosts({{"a", 3}});
  job.Exit(0, 9);
  job.Ready(1);  // waits for another
  job.Exit(1, 9);
  EXPECT_THAT(job.finish, HasSubstr("9 all workers of a generation failed"));
}

TEST(Membership, AllFailBeforeTheyBegin) {
  Job job(Between(1, 2), {{"a", 2}});
  job.Exit(0, 127);
  job.Exit(1, 127);
  EXPECT_EQ(job.finish, "127 no worker is left");
}

TEST(Membership, AStuckMemberIsKilled) {
  MembershipOptions options = Between(1, 2);
  options.timeout_s = 60;
  Job job(options, {{"a", 2}});
  job.Ready(0);
  job.Ready(1);
  job.Ready(0);  // rank 0 left; the other did not
  job.Go(59);
  EXPECT_THAT(job.killed, IsEmpty());
  job.Go(2);
  EXPECT_THAT(job.killed, ElementsAre(1));
  job.Exit(1, 137);
  EXPECT_EQ(job.generation, "2 0\n0 a\n");
}

TEST(Membership, AtTheEndNobodyIsStartedAnyMore) {
  Job job(Between(2, 3), {{"a", 2}});
  job.Ready(0);
  job.Ready(1);
  job.Hosts({{"a", 3}});  // 2 boots
  job.Exit(0, 0);
  EXPECT_THAT(job.terminated, ElementsAre(2));
  // A worker that lost its peer at the very end goes on alone, below the least number.
  job.Ready(1);
  EXPECT_EQ(job.generation, "2 0\n1 a\n");
  job.Exit(2, 143);
  job.Exit(1, 0);
  EXPECT_EQ(job.finish, "0 ");
}

TEST(Membership, ProgramsThatNeverAskAreLeftAlone) {
  Job job(Between(2, 2), {{"a", 2}});
  job.Exit(0, 0);
  EXPECT_THAT(job.terminated, IsEmpty());
  job.Exit(1, 0);
  EXPECT_EQ(job.finish, "0 ");
}

TEST(Membership, AFailureAtTheEndIsTold) {
  Job job(Between(2, 2), {{"a", 2}});
  job.Ready(0);
  job.Ready(1);
  job.Exit(0, 0);
  job.Exit(1, 5);
  EXPECT_EQ(job.finish, "5 a worker failed");
}

}  // namespace
}  // namespace tutti::tools
