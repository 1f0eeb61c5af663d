// The agreement on who is lost, among ranks that are values, over a simulated network. A seed
// decides which rank dies when, and how long each message takes.

#include "bootstrap/loss_agreement.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <queue>
#include <random>

#include "bootstrap/root_messages.h"

namespace tutti {
namespace {

constexpr int64_t kMs = 1'000'000;

std::vector<int> RanksOf(const std::vector<LostRank>& lost) {
  std::vector<int> ranks;
  for (const LostRank& one : lost) ranks.push_back(one.rank);
  return ranks;
}

class SimulatedJob {
 public:
  SimulatedJob(int num_ranks, uint32_t seed)
      : random_(seed), nodes_(static_cast<size_t>(num_ranks)) {
    for (int r = 0; r < num_ranks; ++r) {
      nodes_[At(r)].agreement = std::make_unique<LossAgreement>(r, num_ranks);
      for (const int target : LinkTargets(r, num_ranks)) links_.insert(std::minmax(r, target));
    }
  }

  int Between(int least, int most) { return std::uniform_int_distribution(least, most)(random_); }

  // Ends the process of `rank`; its peers notice, each in its own time.
  void Kill(int rank, int64_t at_ns) {
    Schedule(at_ns, [this, rank] {
      nodes_[At(rank)].dead = true;
      for (const auto& link : std::set(links_)) {
        if (link.first != rank && link.second != rank) continue;
        const int peer = link.first == rank ? link.second : link.first;
        links_.erase(link);
        Schedule(now_ns_ + Delay(), [this, peer, rank] { Notice(peer, rank, false); });
        if (Between(0, 3) > 0)
          Schedule(now_ns_ + 2 * Delay(), [this, peer, rank] { Notice(peer, rank, true); });
      }
    });
  }

  // Breaks a connection between two live ranks. They reach one another again a little later, over a
  // connection for the agreement alone.
  void Reset(int a, int b, int64_t at_ns) {
    Schedule(at_ns, [this, a, b] {
      links_.erase(std::minmax(a, b));
      Schedule(now_ns_ + Delay(), [this, a, b] { Notice(a, b, false); });
      if (Between(0, 1) > 0) Schedule(now_ns_ + Delay(), [this, a, b] { Notice(b, a, false); });
      Schedule(now_ns_ + 3 * Delay(), [this, a, b] {
        links_.insert(std::minmax(a, b));
        Send(a, b, nodes_[At(a)].agreement->Everything());
        Send(b, a, nodes_[At(b)].agreement->Everything());
      });
    });
  }

  // Has the event loop of `rank` do nothing for a while.
  void Stop(int rank, int64_t at_ns, int64_t until_ns) {
    Schedule(at_ns, [this, rank, until_ns] { nodes_[At(rank)].stopped_until_ns = until_ns; });
  }

  // Runs until nothing happens any more. Returns the time of the last decision.
  int64_t Run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ns_ = event.at_ns;
      event.run();
    }
    return last_decision_ns_;
  }

  bool dead(int rank) const { return nodes_[At(rank)].dead; }
  bool linked(int a, int b) const { return links_.contains(std::minmax(a, b)); }
  // Returns the losses that a rank was told, by decision.
  const std::vector<std::vector<LostRank>>& decisions(int rank) const {
    return nodes_[At(rank)].decisions;
  }
  std::set<int> LostAt(int rank) const {
    std::set<int> lost;
    for (const auto& decision : decisions(rank))
      for (const LostRank& one : decision) lost.insert(one.rank);
    return lost;
  }
  LossAgreement& agreement(int rank) { return *nodes_[At(rank)].agreement; }

 private:
  struct Node {
    std::unique_ptr<LossAgreement> agreement;
    std::vector<std::vector<LostRank>> decisions;
    bool dead = false;
    int64_t stopped_until_ns = 0;
    int64_t wake_at_ns = 0;
  };
  struct Event {
    int64_t at_ns;
    uint64_t number;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return std::tie(at_ns, number) > std::tie(other.at_ns, other.number);
    }
  };
  static size_t At(int rank) { return static_cast<size_t>(rank); }
  int64_t Delay() { return Between(1, 5000) * int64_t{1000}; }
  void Schedule(int64_t at_ns, std::function<void()> run) {
    events_.push({at_ns, next_number_++, std::move(run)});
  }
  // Runs `step` at `rank` unless the rank is stopped.
  void At(int rank, std::function<void(LossAgreement&)> step) {
    Node& node = nodes_[At(rank)];
    if (node.dead) return;
    if (node.stopped_until_ns > now_ns_) {
      Schedule(node.stopped_until_ns, [this, rank, step] { At(rank, step); });
      return;
    }
    step(*node.agreement);
    After(rank);
  }
  void Notice(int rank, int peer, bool certain) {
    At(rank, [this, peer, certain](LossAgreement& agreement) {
      agreement.Accuse(peer, certain, "it closed the connection", now_ns_);
    });
  }
  void Send(int from, int to, const Bytes& message) {
    if (message.empty()) return;
    // Links keep the order of their messages.
    int64_t& busy_until_ns = last_arrival_[{from, to}];
    busy_until_ns = std::max(busy_until_ns + 1, now_ns_ + Delay());
    Schedule(busy_until_ns, [this, to, message] {
      At(to, [this, message](LossAgreement& agreement) {
        EXPECT_TRUE(agreement.Take(message, now_ns_).ok());
      });
    });
  }
  void After(int rank) {
    Node& node = nodes_[At(rank)];
    const Bytes news = node.agreement->TakeNews();
    for (const auto& [a, b] : links_) {
      if (a == rank) Send(rank, b, news);
      if (b == rank) Send(rank, a, news);
    }
    if (std::vector<LostRank> decided = node.agreement->TakeDecided(); !decided.empty()) {
      node.decisions.push_back(std::move(decided));
      last_decision_ns_ = now_ns_;
    }
    const std::optional<int64_t> wake = node.agreement->wake_at_ns();
    if (!wake || *wake == node.wake_at_ns) return;
    node.wake_at_ns = *wake;
    Schedule(std::max(*wake, now_ns_), [this, rank] {
      At(rank, [this](LossAgreement& agreement) { agreement.Advance(now_ns_); });
    });
  }

  std::mt19937 random_;
  std::vector<Node> nodes_;
  std::set<std::pair<int, int>> links_;
  std::map<std::pair<int, int>, int64_t> last_arrival_;
  std::priority_queue<Event> events_;
  uint64_t next_number_ = 0;
  int64_t now_ns_ = 0;
  int64_t last_decision_ns_ = 0;
};

TEST(LossAgreement, OneDeathIsNamedAlikeByAllSurvivors) {
  for (uint32_t seed = 1; seed <= 62; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const int n = 2 + static_cast<int>(seed % 31);
    SimulatedJob job(n, seed);
    const int victim = job.Between(0, n - 1);
    job.Kill(victim, kMs);
    EXPECT_LT(job.Run(), 1000 * kMs);
    for (int r = 0; r < n; ++r) {
      if (r == victim) continue;
      ASSERT_EQ(job.decisions(r).size(), 1u) << "rank " << r;
      EXPECT_EQ(RanksOf(job.decisions(r)[0]), std::vector<int>{victim}) << "rank " << r;
      EXPECT_EQ(job.decisions(r)[0][0].why, "it closed the connection");
    }
  }
}

TEST(LossAgreement, ManyDeathsAtAnyTimesEndInTheSameSet) {
  for (uint32_t seed = 1; seed <= 62; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const int n = 8 + static_cast<int>(seed % 25);
    SimulatedJob job(n, seed);
    // Fewer ranks die than a rank has links, so the survivors reach one another.
    const int deaths = job.Between(2, 3);
    std::set<int> killed;
    while (static_cast<int>(killed.size()) < deaths) killed.insert(job.Between(0, n - 1));
    for (const int victim : killed) job.Kill(victim, job.Between(1, 60) * kMs);
    EXPECT_LT(job.Run(), 1500 * kMs);
    for (int r = 0; r < n; ++r) {
      if (job.dead(r)) continue;
      EXPECT_EQ(job.LostAt(r), killed) << "rank " << r;
    }
  }
}

TEST(LossAgreement, OfTwoThatAccuseOneAnotherAllExcludeTheSame) {
  for (uint32_t seed = 1; seed <= 62; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const int n = 2 + static_cast<int>(seed % 15);
    SimulatedJob job(n, seed);
    const int a = job.Between(0, n - 1);
    const std::vector<int> targets = LinkTargets(a, n);
    const int b =
        targets[static_cast<size_t>(job.Between(0, static_cast<int>(targets.size()) - 1))];
    job.Reset(a, b, kMs);
    EXPECT_LT(job.Run(), 1000 * kMs);
    for (int r = 0; r < n; ++r)  // The excluded rank hears of its exclusion as well.
      EXPECT_EQ(job.LostAt(r), std::set{std::max(a, b)}) << "rank " << r;
  }
}

TEST(LossAgreement, ARankWithManyBrokenConnectionsGoesNotItsPeers) {
  constexpr int kRanks = 16;
  SimulatedJob job(kRanks, 7);
  for (const int peer : {6, 7, 9, 3}) job.Reset(5, peer, kMs);
  job.Run();
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(job.LostAt(r), std::set{5}) << "rank " << r;
}

TEST(LossAgreement, GoesOnWhereTheLowestRanksDoNotAnswer) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SimulatedJob job(12, seed);
    job.Stop(0, 0, 5000 * kMs);
    job.Stop(1, 0, 5000 * kMs);
    job.Kill(7, kMs);
    job.Run();
    for (int r = 2; r < 12; ++r) {
      if (r == 7) continue;
      EXPECT_EQ(job.LostAt(r), std::set{7}) << "rank " << r << ", seed " << seed;
    }
    // The ranks that were stopped hear of the decision afterwards.
    EXPECT_EQ(job.LostAt(0), std::set{7});
  }
}

TEST(LossAgreement, ARankThatLeftInPeaceIsNotLost) {
  LossAgreement agreement(0, 3);
  agreement.NoteLeft(1);
  agreement.Accuse(1, true, "connection refused", 0);
  EXPECT_FALSE(agreement.wake_at_ns().has_value());
  agreement.Advance(1000 * kMs);
  EXPECT_TRUE(agreement.TakeDecided().empty());
}

// Networks explain a failure and its remedies at length.
TEST(LossAgreement, LongReasonsReachTheOthers) {
  for (const size_t length : {255, 256, 800, 5000}) {
    LossAgreement agreement(0, 3);
    LossAgreement other(1, 3);
    const std::string why = std::string(length - 4, 'x') + " end";
    other.Accuse(2, true, why, 0);
    ASSERT_TRUE(agreement.Take(other.TakeNews(), 0).ok()) << length;
    agreement.Advance(1000 * kMs);
    const std::vector<LostRank> lost = agreement.TakeDecided();
    ASSERT_EQ(lost.size(), 1u) << length;
    EXPECT_EQ(lost[0].rank, 2);
    if (length <= 800) {
      EXPECT_EQ(lost[0].why, why);
    } else {
      EXPECT_TRUE(lost[0].why.starts_with("xxx") && lost[0].why.ends_with("x...")) << lost[0].why;
    }
    // The accuser has the same text.
    ASSERT_TRUE(other.Take(agreement.TakeNews(), 1000 * kMs).ok()) << length;
    other.Advance(2000 * kMs);
    const std::vector<LostRank> by_accuser = other.TakeDecided();
    ASSERT_EQ(by_accuser.size(), 1u) << length;
    EXPECT_EQ(by_accuser[0].why, lost[0].why);
  }
}

TEST(LossAgreement, AMessageThatBreaksTheFormatHasNoEffect) {
  LossAgreement agreement(0, 3);
  LossAgreement other(1, 3);
  other.Accuse(2, true, "it is gone", 0);
  const Bytes good = other.TakeNews();
  for (size_t length = 1; length < good.size(); ++length)
    EXPECT_FALSE(agreement.Take(std::span(good).first(length), 0).ok()) << length;
  Bytes foreign = good;
  foreign[1] = std::byte{3};  // accuses rank 3 of 3
  EXPECT_FALSE(agreement.Take(foreign, 0).ok());
  EXPECT_FALSE(agreement.IsOpen(2));
  EXPECT_TRUE(agreement.Take(good, 0).ok());
  EXPECT_TRUE(agreement.IsOpen(2));
}

}  // namespace
}  // namespace tutti
