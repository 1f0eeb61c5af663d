// Jobs that cannot start, connections without the key, and damaged ids: the reason that each rank
// is told, and how the ranks go on.

#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "bootstrap/auth.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/testing/thread_ranks.h"
#include "sys/tcp.h"
#include "testing/threads.h"

namespace tutti {
namespace {

using testing::Job;

// Returns the message of each attempt; empty for success.
std::vector<std::string> Outcomes(const Job& job, const std::vector<Bootstrap::Options>& attempts) {
  std::vector<std::string> outcomes(attempts.size());
  testing::ForEach(static_cast<int>(attempts.size()), [&](int i) {
    const auto index = static_cast<size_t>(i);
    auto bootstrap = Bootstrap::Create(*job.loop, job.settings, attempts[index]);
    outcomes[index] = bootstrap.ok() ? "" : std::string(bootstrap.status().message());
  });
  return outcomes;
}

// A job whose time-out comes when the test calls for it.
struct HeldJob : Job {
  explicit HeldJob(int ranks, int roots = 1)
      : Job(ranks, roots, testing::LocalSettings(), std::make_unique<testing::HeldTimersLoop>()) {}
  testing::HeldTimersLoop& held() { return static_cast<testing::HeldTimersLoop&>(*loop); }

  // The outcomes of `ranks`, whose time is over when the roots have had `requests` requests.
  std::vector<std::string> OutcomesOf(const std::vector<int>& ranks, int requests) {
    std::vector<Bootstrap::Options> attempts;
    for (const int rank : ranks) attempts.push_back(OptionsFor(rank));
    std::thread clock([&] {
      EXPECT_TRUE(held().AwaitAsked(requests));
      held().FireTimers();
    });
    std::vector<std::string> outcomes = Outcomes(*this, attempts);
    clock.join();
    return outcomes;
  }
};

TEST(BootstrapFaults, NamesTheRanksThatAreMissing) {
  HeldJob job(9);
  for (const std::string& outcome : job.OutcomesOf({0, 1, 2, 5, 8}, 5)) {
    // The time that was left when the first of them arrived, to a second.
    EXPECT_THAT(outcome,
                ::testing::MatchesRegex("5 of 9 ranks arrived within (60|59) s; missing: 3-4, 6-7. "
                                        "TUTTI_INIT_TIMEOUT_S sets how long is waited"));
  }
  // A rank that comes late is told at once, and not when its time is over.
  const int64_t late_ns = NowNs();
  EXPECT_NE(Outcomes(job, {job.OptionsFor(3)})[0].find("missing: 3-4"), std::string::npos);
  EXPECT_LT(NowNs() - late_ns, 30'000'000'000);
}

TEST(BootstrapFaults, SaysOfWhichRootRanksAreMissing) {
  HeldJob job(8, 2);
  // Seven registrations; ranks 4 to 6 then wait at the second root, and ranks 0 to 3, whose root
  // has answered, look up neighbours there.
  for (const std::string& outcome : job.OutcomesOf({0, 1, 2, 3, 4, 5, 6}, 11))
    EXPECT_NE(outcome.find("missing: 7"), std::string::npos) << outcome;
}

TEST(BootstrapFaults, NamesBothThatTookOneNumber) {
  Job job(3);
  job.timeout_s = 20;
  const int64_t start_ns = NowNs();
  for (const std::string& outcome :
       Outcomes(job, {job.OptionsFor(0), job.OptionsFor(1), job.OptionsFor(1)})) {
    EXPECT_NE(outcome.find("rank 1 is taken twice, by pid"), std::string::npos) << outcome;
  }
  EXPECT_LT(NowNs() - start_ns, 15'000'000'000);
}

TEST(BootstrapFaults, ShowsBothSidesOfADisagreementOnTheNumberOfRanks) {
  Job job(3);
  job.timeout_s = 20;
  auto attempts = std::vector{job.OptionsFor(0), job.OptionsFor(1)};
  attempts[1].num_ranks = 4;
  for (const std::string& outcome : Outcomes(job, attempts)) {
    EXPECT_NE(outcome.find("disagree on how many ranks"), std::string::npos) << outcome;
    EXPECT_NE(outcome.find("says 3"), std::string::npos) << outcome;
    EXPECT_NE(outcome.find("says 4"), std::string::npos) << outcome;
  }
}

// The root must not be gone after as many answers as its first visitor believes to be in the job.
TEST(BootstrapFaults, TellsAllOfALargeJobThatItsFirstRankBelievesInASmallOne) {
  HeldJob job(4);
  auto odd = job.OptionsFor(0);
  odd.num_ranks = 2;
  std::string told_odd;
  std::thread first([&] { told_odd = Outcomes(job, {odd})[0]; });
  EXPECT_TRUE(job.held().AwaitAsked(1));
  for (const int rank : {1, 2, 3}) {  // in turn: the second answer must not be the last
    const std::string told = Outcomes(job, {job.OptionsFor(rank)})[0];
    EXPECT_NE(told.find("says 2"), std::string::npos) << "rank " << rank << ": " << told;
    EXPECT_NE(told.find("says 4"), std::string::npos) << "rank " << rank << ": " << told;
  }
  first.join();
  EXPECT_NE(told_odd.find("says 4"), std::string::npos) << told_odd;
}

TEST(BootstrapFaults, TellsARankThatComesAfterTwoOfOneNumber) {
  Job job(3);
  job.timeout_s = 20;
  Outcomes(job, {job.OptionsFor(0), job.OptionsFor(1), job.OptionsFor(1)});
  const std::string late = Outcomes(job, {job.OptionsFor(2)})[0];
  EXPECT_NE(late.find("rank 1 is taken twice"), std::string::npos) << late;
}

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

TEST(BootstrapFaults, JobsOfOneRankLeaveNoRootBehind) {
  const auto loop = testing::NewLoop();
  const Settings settings = testing::LocalSettings();
  const auto one_job = [&] {
    auto id = Root::Create(*loop, settings);
    ASSERT_TRUE(id.ok()) << id.status().message();
    Bootstrap::Options options;
    options.ids = {*id};
    auto bootstrap = Bootstrap::Create(*loop, settings, options);
    ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
  };
  one_job();
  loop->RunSync([] {});
  const int before = OpenDescriptors();
  for (int i = 0; i < 20; ++i) one_job();
  loop->RunSync([] {});  // a root ends in the callback that sends its last answer
  EXPECT_EQ(OpenDescriptors(), before);
}

// A program that makes ids in vain keeps its descriptors, and its latest ids stay usable.
TEST(BootstrapFaults, IdsThatNobodyUsesAreBounded) {
  constexpr size_t kPlaces = 4;
  AcceptLimit unasked(kPlaces);  // outlives the loop
  const auto loop = testing::NewLoop();
  const Settings settings = testing::LocalSettings();
  const int before = OpenDescriptors();
  std::vector<UniqueId> ids;
  for (int i = 0; i < 20; ++i) {
    auto id = Root::Create(*loop, settings, &unasked);
    ASSERT_TRUE(id.ok()) << id.status().message();
    ids.push_back(*id);
  }
  EXPECT_EQ(OpenDescriptors(), before + static_cast<int>(kPlaces));
  const auto outcome = [&](const UniqueId& id) {
    Bootstrap::Options options;
    options.ids = {id};
    options.num_ranks = 2;
    options.deadline = Deadline::AfterSeconds(0.3);
    const Status created = Bootstrap::Create(*loop, settings, options).status();
    return std::string(created.message());
  };
  // Refused, unless another process listens at the port by now.
  EXPECT_THAT(outcome(ids.front()), ::testing::HasSubstr("cannot reach the root"));
  EXPECT_THAT(outcome(ids.back()), ::testing::HasSubstr("missing: 1"));
}

TEST(BootstrapFaults, AJobOfOneRankHearsOfOthersWithItsId) {
  HeldJob job(2);
  std::string told;
  std::thread other([&] { told = Outcomes(job, {job.OptionsFor(1)})[0]; });
  EXPECT_TRUE(job.held().AwaitAsked(1));
  auto alone = job.OptionsFor(0);
  alone.num_ranks = 1;
  const std::string outcome = Outcomes(job, {alone})[0];
  other.join();
  EXPECT_THAT(outcome, ::testing::HasSubstr("disagree on how many ranks"));
  EXPECT_THAT(told, ::testing::HasSubstr("disagree on how many ranks"));
}

TEST(BootstrapFaults, TellsTheOthersWhenARankGoesAwayEarly) {
  HeldJob job(3);
  std::string told;
  std::thread staying([&] { told = Outcomes(job, {job.OptionsFor(0)})[0]; });
  std::atomic<bool> abort{false};
  std::promise<pid_t> leaver;
  std::thread leaving([&] {
    auto options = job.OptionsFor(1);
    options.abort_flag = &abort;
    leaver.set_value(testing::ThisThread());
    EXPECT_FALSE(Bootstrap::Create(*job.loop, job.settings, options).ok());
  });
  // Both ranks have registered, and the rank that leaves waits for the root's answer.
  EXPECT_TRUE(job.held().AwaitAsked(2));
  EXPECT_TRUE(testing::AwaitAsleep(leaver.get_future().get()));
  abort = true;
  leaving.join();
  staying.join();
  EXPECT_THAT(told, ::testing::HasSubstr("rank 1 (pid"));
  EXPECT_THAT(told, ::testing::HasSubstr("aborted the initialisation"));
}

TEST(BootstrapFaults, RefusesImpossibleOptions) {
  const Job job(2);
  auto options = job.OptionsFor(2);
  EXPECT_EQ(Bootstrap::Create(*job.loop, job.settings, options).status().code(),
            Code::kInvalidArgument);
  options.rank = -1;
  EXPECT_FALSE(Bootstrap::Create(*job.loop, job.settings, options).ok());
  options.rank = 0;
  options.num_ranks = 0;
  EXPECT_FALSE(Bootstrap::Create(*job.loop, job.settings, options).ok());
  options.num_ranks = 2;
  options.ids.resize(3, options.ids[0]);
  EXPECT_FALSE(Bootstrap::Create(*job.loop, job.settings, options).ok());
  options.ids.clear();
  EXPECT_FALSE(Bootstrap::Create(*job.loop, job.settings, options).ok());
}

TEST(BootstrapFaults, AnIdServesOneJob) {
  Job job(2);
  job.timeout_s = 30;
  for (const std::string& outcome : Outcomes(job, {job.OptionsFor(0), job.OptionsFor(1)})) {
    EXPECT_EQ(outcome, "");
  }
  const int64_t start_ns = NowNs();
  const auto again = Outcomes(job, {job.OptionsFor(0)});
  EXPECT_NE(again[0].find("cannot reach the root"), std::string::npos) << again[0];
  EXPECT_LT(NowNs() - start_ns, 15'000'000'000);
}

TEST(BootstrapFaults, AnotherJobsKeyHasNoEffectOnThisOne) {
  Job job(2);
  auto outsider = job.OptionsFor(1);
  outsider.ids[0].key = RandomKey();
  outsider.deadline = Deadline::AfterSeconds(30);
  const auto outcomes =
      Outcomes(job, {outsider, job.OptionsFor(0), outsider, job.OptionsFor(1), outsider});
  EXPECT_EQ(outcomes[1], "");
  EXPECT_EQ(outcomes[3], "");
  for (const size_t i : {0u, 2u, 4u}) {
    EXPECT_NE(outcomes[i].find("cannot reach the root"), std::string::npos) << outcomes[i];
  }
}

// Connections that say nothing, garbage, or a little at a time, to every listening port of this
// process while `body` runs.
class Outsiders {
 public:
  explicit Outsiders(std::vector<SocketAddress> listeners) : listeners_(std::move(listeners)) {
    for (int kind = 0; kind < 3; ++kind) {
      threads_.emplace_back([this, kind] { Disturb(kind); });
    }
  }
  ~Outsiders() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  int made() const { return made_; }

 private:
  static void Say(const UniqueFd& fd, std::span<const std::byte> bytes) {
    [[maybe_unused]] const auto sent = TrySend(fd.get(), bytes);
  }
  void Disturb(int kind) {
    std::vector<UniqueFd> held;
    for (uint32_t round = 0; !stop_; ++round) {
      const SocketAddress& listener = listeners_[round % listeners_.size()];
      auto fd = Connect(listener, {Deadline::AfterSeconds(1), nullptr});
      if (!fd.ok()) continue;
      ++made_;
      Bytes garbage(round * 37 % 700);
      for (size_t i = 0; i < garbage.size(); ++i) garbage[i] = std::byte(i * round + round);
      if (kind == 1) Say(*fd, garbage);
      if (kind == 2) Say(*fd, std::span(garbage).first(garbage.size() / 9));
      if (kind != 1 && held.size() < 300) held.push_back(std::move(fd).value());
      if (kind == 2) {
        for (UniqueFd& slow : held) Say(slow, Bytes(1));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(300));
    }
  }
  const std::vector<SocketAddress> listeners_;
  std::atomic<bool> stop_{false};
  std::atomic<int> made_{0};
  std::vector<std::thread> threads_;
};

TEST(BootstrapFaults, OutsidersAtEveryListenerHaveNoEffect) {
  constexpr int kRanks = 8;
  Settings settings = testing::LocalSettings();
  const uint16_t low = testing::FreePort();
  const auto high = static_cast<uint16_t>(low + 60);  // some of these may be in use
  settings.port_range = {.low = low, .high = high};
  const Job job(kRanks, 1, settings);
  std::vector<SocketAddress> listeners;
  for (uint16_t port = low; port <= high; ++port) {
    listeners.push_back(job.ids[0].root);
    listeners.back().port = port;
  }
  listeners.insert(listeners.begin(), job.ids[0].root);
  const Outsiders outsiders(listeners);
  constexpr int kFew = 50;  // Outsiders, which may be slow to come.
  while (outsiders.made() == 0) std::this_thread::yield();
  job.Run([&](Bootstrap& bootstrap) {
    struct Word {
      int value = 0;
      bool few = false;
    };
    bool few = true;
    for (int round = 0; round < 30 || (few && round < 3000); ++round) {
      std::array<Word, kRanks> data = {};
      data[static_cast<size_t>(bootstrap.rank())] = {bootstrap.rank() + round,
                                                     outsiders.made() <= kFew};
      ASSERT_TRUE(bootstrap.AllGather(data.data(), sizeof(Word), Deadline::AfterSeconds(60)).ok());
      for (int i = 0; i < kRanks; ++i) EXPECT_EQ(data[static_cast<size_t>(i)].value, i + round);
      few = data[0].few;  // the ranks must agree
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  EXPECT_GT(outsiders.made(), kFew);
}

TEST(BootstrapFaults, JobsWithAFixedAddressFollowOneAnother) {
  Settings settings = testing::LocalSettings();
  settings.comm_id = fmt::format("127.0.0.1:{}", testing::FreePort());
  settings.comm_key = "one key";
  const auto loop = testing::NewLoop();
  for (int round = 0; round < 10; ++round) {
    testing::ForEach(4, [&](int rank) {
      auto id = Root::Create(*loop, settings);
      ASSERT_TRUE(id.ok());
      Bootstrap::Options options;
      options.rank = rank;
      options.num_ranks = 4;
      options.ids = {*id};
      options.deadline = Deadline::AfterSeconds(20);
      auto bootstrap = Bootstrap::Create(*loop, settings, options);
      ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
      ASSERT_TRUE((*bootstrap)->Barrier(Deadline::AfterSeconds(20)).ok());
    });
  }
}

// Rank 0 holds the right key, rank 1 a wrong key. Either may give up first, with the other gone or
// not; both speak of the key.
void ExpectAdviceOnAWrongKey(bool root_gives_up_first) {
  Settings settings = testing::LocalSettings();
  settings.comm_id = fmt::format("127.0.0.1:{}", testing::FreePort());
  testing::HeldTimersLoop loop;
  std::array<std::string, 2> outcomes;
  std::atomic<bool> abort = false;
  std::thread clock([&] {
    // Rank 0 waits. Its handshake is over, and so are two of rank 1, which has seen the end of the
    // first.
    EXPECT_TRUE(loop.AwaitAsked(1));
    EXPECT_TRUE(loop.AwaitForgotten(3));
    if (root_gives_up_first) loop.FireTimers();  // the root tells latecomers, for a while
    if (root_gives_up_first) loop.FireTimers();  // and is gone
    abort = true;
  });
  testing::ForEach(2, [&](int rank) {
    Settings own = settings;
    own.comm_key = rank == 0 ? "right" : "wrong";
    own.secret_source = "TUTTI_COMM_KEY";
    auto id = Root::Create(loop, own);
    ASSERT_TRUE(id.ok());
    Bootstrap::Options options;
    options.rank = rank;
    options.num_ranks = 2;
    options.ids = {*id};
    options.deadline = Deadline::AfterSeconds(60);
    if (rank == 1) options.abort_flag = &abort;
    auto bootstrap = Bootstrap::Create(loop, own, options);
    ASSERT_FALSE(bootstrap.ok());
    outcomes[static_cast<size_t>(rank)] = bootstrap.status().message();
    if (rank == 1 && !root_gives_up_first) loop.FireTimers();
  });
  clock.join();
  EXPECT_NE(outcomes[0].find("missing: 1"), std::string::npos) << outcomes[0];
  EXPECT_NE(outcomes[0].find("did not hold the job's secret"), std::string::npos) << outcomes[0];
  EXPECT_NE(outcomes[1].find("TUTTI_COMM_KEY"), std::string::npos) << outcomes[1];
}

TEST(BootstrapFaults, AWrongKeyAtAFixedAddressEndsWithAdvice) {
  ExpectAdviceOnAWrongKey(/*root_gives_up_first=*/true);
  ExpectAdviceOnAWrongKey(/*root_gives_up_first=*/false);
}

constexpr const char* kAdvice =
    "/home/me/.tutti/key here; compare `tutti key --fingerprint` on all hosts";

// Makes a job's id with the secret of rank 0 and returns how each rank's Create ends. The root's
// time is over once rank 0 waits and the root no longer watches `forgotten` sockets; 0: never.
std::array<std::string, 2> OutcomesWithSecrets(const std::string& zero, const std::string& one,
                                               int forgotten) {
  testing::HeldTimersLoop loop;
  Settings settings = testing::LocalSettings();
  settings.comm_key = zero;
  settings.secret_source = "/home/me/.tutti/key";
  const auto id = Root::Create(loop, settings);
  EXPECT_TRUE(id.ok());
  std::array<std::string, 2> outcomes;
  std::thread clock([&] {
    if (forgotten == 0) return;
    EXPECT_TRUE(loop.AwaitAsked(1));
    EXPECT_TRUE(loop.AwaitForgotten(forgotten));
    loop.FireTimers();
  });
  testing::ForEach(2, [&](int rank) {
    Settings own = settings;
    own.comm_key = rank == 0 ? zero : one;
    Bootstrap::Options options;
    options.rank = rank;
    options.num_ranks = 2;
    options.ids = {*id};
    options.deadline = Deadline::AfterSeconds(60);
    const auto bootstrap = Bootstrap::Create(loop, own, options);
    outcomes[static_cast<size_t>(rank)] = bootstrap.ok() ? "made" : bootstrap.status().message();
  });
  clock.join();
  return outcomes;
}

TEST(BootstrapFaults, RanksWithTheSecretMeetAndWhoOnlySawTheIdDoesNot) {
  const std::string secret = "the secret of this test's job";
  for (const std::string& outcome : OutcomesWithSecrets(secret, secret, 0))
    EXPECT_EQ(outcome, "made");
  // The root forgets rank 0's handshake, and the connection that told nothing.
  const auto missing = OutcomesWithSecrets(secret, "", 2);
  EXPECT_THAT(missing[0], ::testing::HasSubstr(kAdvice));
  EXPECT_THAT(missing[1], ::testing::HasSubstr("and rank 1 of 2"));
}

TEST(BootstrapFaults, ASecretThatTheIdLacksIsToldToAll) {
  for (const std::string& outcome : OutcomesWithSecrets("", "a secret of rank 1 alone", 0))
    EXPECT_THAT(outcome, ::testing::HasSubstr("rank 1 of 2"));
}

TEST(BootstrapFaults, DifferentSecretsAreToldToBoth) {
  // The root forgets the handshakes: rank 0's, and each attempt of rank 1.
  const auto outcomes = OutcomesWithSecrets("one secret of many words", "another secret of words",
                                            1 + kConnectAttempts);
  for (const std::string& outcome : outcomes) {
    EXPECT_THAT(outcome, ::testing::HasSubstr(kAdvice));
    EXPECT_THAT(outcome, ::testing::Not(::testing::HasSubstr("TUTTI_COMM_KEY")));
  }
}

}  // namespace
}  // namespace tutti
