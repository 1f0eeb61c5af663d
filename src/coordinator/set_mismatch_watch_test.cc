// Names in the wrong set, on process sets of simulated ranks: the test hands the statements of the
// ranks round and has each rank decide, at times of its choice.

#include "coordinator/set_mismatch_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include "coordinator/testing/simulated_network.h"
#include "sys/event_loop.h"
#include "testing/threads.h"

namespace tutti::coordinator {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

bool Until(const std::function<bool()>& holds, std::chrono::seconds limit = 40s) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

size_t Mistakes(const SetWaits& waits) {
  const auto mismatches = FindSetMismatches(waits);
  return static_cast<size_t>(std::count_if(
      mismatches.begin(), mismatches.end(),
      [](const auto& mismatch) { return mismatch.outcome == SetMismatch::Outcome::kMistake; }));
}

// Sets are numbered from 1: the test stands in for the set of all ranks, which carries a job's own
// checks.
class Job {
 public:
  Job(int num_ranks, const std::vector<std::vector<int>>& sets, uint64_t seed = 1) {
    loop_ = EventLoop::Create("test-calls").value();
    ranks_.resize(static_cast<size_t>(num_ranks));
    for (size_t i = 0; i < sets.size(); ++i) {
      networks_.push_back(std::make_unique<SimulatedNetwork>(SimulatedNetwork::Options{
          .num_ranks = static_cast<int>(sets[i].size()), .seed = seed + i}));
      for (size_t k = 0; k < sets[i].size(); ++k) {
        AddSet(static_cast<int>(i) + 1, static_cast<int>(k), sets[i]);
      }
    }
    for (int rank = 0; rank < num_ranks; ++rank) {
      Rank& self = At(rank);
      self.watch = std::make_unique<SetMismatchWatch>(
          rank, 60, [&self] { return self.sets; }, [] { return true; });
    }
  }
  ~Job() { End(); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Ends all waits.
  void End() {
    for (const auto& network : networks_) network->Kill(0);
    for (Rank& rank : ranks_) {
      for (const auto& set : rank.sets) set->Fail(RemoteError("the test is over"));
    }
    for (Rank& rank : ranks_) {
      for (const auto& set : rank.sets) EXPECT_TRUE(set->AwaitEnd(Deadline::AfterSeconds(20)));
    }
    loop_->RunSync([] {});
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  SetMismatchWatch& watch(int rank) { return *At(rank).watch; }
  ProcessSet& set(int rank, int id) {
    for (const auto& set : At(rank).sets) {
      if (set->id() == id) return *set;
    }
    ADD_FAILURE() << "rank " << rank << " is not in set " << id;
    std::abort();
  }

  TicketHold Ask(int rank, int id, const std::string& name) {
    TicketHold ticket = TicketHold::Make();
    TicketHold shared = ticket.Share();
    const tuttiTensor_t barrier = MakeTensor(name.c_str(), OpKind::kBarrier);
    const Status status = set(rank, id).Enqueue({&barrier, 1}, nullptr, {&shared, 1});
    EXPECT_TRUE(status.ok()) << status.message();
    return ticket;
  }
  // Returns "" or the error.
  std::string Wait(int rank, int id, const TicketHold& ticket) {
    set(rank, id).Wait(*ticket);
    return ticket->status.ok() ? "" : std::string(ticket->status.message());
  }

  // Returns the result of one check.
  SetWaits Check() {
    SetWaits all;
    for (int rank = 0; rank < size(); ++rank) all.Merge(watch(rank).CollectWaits());
    return all;
  }
  // Makes checks, decided by all, until a check finds mistakes; the last check is left to be
  // decided.
  SetWaits CheckUntilProven() {
    SetWaits waits;
    EXPECT_TRUE(Until([&] {
      waits = Check();
      if (Mistakes(waits) > 0) return true;
      for (int rank = 0; rank < size(); ++rank) watch(rank).Decide(waits);
      return false;
    }));
    return waits;
  }

 private:
  struct Rank {
    std::vector<std::shared_ptr<ProcessSet>> sets;
    std::unique_ptr<SetMismatchWatch> watch;
  };
  Rank& At(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  void AddSet(int id, int place, const std::vector<int>& members) {
    const int rank = members[static_cast<size_t>(place)];
    ProcessSet::Options options;
    options.id = id;
    options.rank = place;
    options.members = members;
    ProcessSet::Hooks hooks;
    hooks.call_to_round = [this, id, rank, members](uint64_t round) {
      for (const int other : members) {
        if (other != rank)
          loop_->Post([this, id, other, round] { set(other, id).OnRoundCall(round); });
      }
    };
    hooks.break_off = [] {};
    auto made = std::make_shared<ProcessSet>(
        options, networks_[static_cast<size_t>(id - 1)]->Join(place),
        std::vector<std::unique_ptr<Operations>>(), hooks, &timeline_, nullptr);
    EXPECT_TRUE(made->Start().ok());
    At(rank).sets.push_back(std::move(made));
  }

  Timeline timeline_{0};
  std::vector<std::unique_ptr<SimulatedNetwork>> networks_;
  std::vector<Rank> ranks_;
  std::unique_ptr<EventLoop> loop_;
};

// Runs a program for each rank, on a thread of its own, and `checks` on the calling thread.
void RunPrograms(Job& job, const std::function<void(int)>& program,
                 const std::function<void()>& checks) {
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.size(); ++rank) {
    threads.emplace_back([&, rank] {
      program(rank);
      ++finished;
    });
  }
  checks();
  EXPECT_TRUE(Until([&] { return finished == job.size(); })) << "some rank waits for ever";
  job.End();
  for (std::thread& thread : threads) thread.join();
}

// Rank 0 decides first, and the failure reaches set 2 of rank 1 through rank 0. As long as rank 1
// has not decided, its program must not learn that x failed: the program could ask for x in set 1,
// where rank 0's x might be about to fail. Then both ask for x again, each first where the other
// rank did.
TEST(SetMismatchWatchTest, NothingFailsBeforeTheRankHasDecided) {
  Job job(2, {{0, 1}, {0, 1}});
  std::array<std::atomic<bool>, 2> failed = {};
  std::atomic<pid_t> rank_1 = 0;
  const auto program = [&](int rank) {
    const int mine = 1 + rank, other = 2 - rank;
    if (rank == 1) rank_1 = testing::ThisThread();
    EXPECT_THAT(job.Wait(rank, mine, job.Ask(rank, mine, "x")), HasSubstr("Ranks disagree"));
    failed[static_cast<size_t>(rank)] = true;
    const TicketHold there = job.Ask(rank, other, "x");
    const TicketHold here = job.Ask(rank, mine, "x");
    EXPECT_EQ(job.Wait(rank, mine, here), "");
    EXPECT_EQ(job.Wait(rank, other, there), "");
  };
  RunPrograms(job, program, [&] {
    const SetWaits waits = job.CheckUntilProven();
    job.watch(0).Decide(waits);
    EXPECT_TRUE(Until([&] { return failed[0] && job.set(1, 2).counters().rounds > 0; }));
    EXPECT_TRUE(testing::AwaitAllAsleep("tutti-"));
    EXPECT_TRUE(testing::AwaitAsleep(rank_1));
    EXPECT_FALSE(failed[1]);
    job.watch(1).Decide(waits);
  });
}

// A request of a rank that waits inside a round is told to the others in the next round; a failure
// that other ranks brought to the present round would miss the request.
TEST(SetMismatchWatchTest, WhatWaitsForTheNextRoundFailsToo) {
  Job job(2, {{0, 1}, {0, 1}});
  const auto program = [&](int rank) {
    std::vector<TicketHold> early;
    if (rank == 0) {
      EXPECT_TRUE(Until([&] {
        early.push_back(job.Ask(0, 1, "early" + std::to_string(early.size())));
        return job.set(0, 1).waits().round == 1;
      }));
    }
    const TicketHold x = job.Ask(rank, 1 + rank, "x");
    EXPECT_THAT(job.Wait(rank, 1 + rank, x), HasSubstr("Ranks disagree"));
    for (const TicketHold& ticket : early) EXPECT_FALSE(ticket->done);
  };
  RunPrograms(job, program, [&] {
    const SetWaits waits = job.CheckUntilProven();
    job.watch(1).Decide(waits);
    job.watch(0).Decide(waits);
  });
}

// Where each rank asks in a step: all in the same set, or in sets of which none gets all of its
// members.
struct Step {
  std::vector<int> sets;  // one set for each rank
  bool crossed = false;
};

std::vector<Step> RandomSteps(const std::vector<std::vector<int>>& sets, int num_ranks, int count,
                              uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Step> steps;
  while (static_cast<int>(steps.size()) < count) {
    Step step;
    step.crossed = random() % 2 == 0;
    const int common = 1 + static_cast<int>(random() % 2);
    std::vector<size_t> have(sets.size(), 0);
    for (int rank = 0; rank < num_ranks; ++rank) {
      int id = common;
      const auto is_in = [&] {
        const auto& members = sets[static_cast<size_t>(id - 1)];
        return std::find(members.begin(), members.end(), rank) != members.end();
      };
      do {
        if (step.crossed) id = 1 + static_cast<int>(random() % sets.size());
      } while (!is_in());
      ++have[static_cast<size_t>(id - 1)];
      step.sets.push_back(id);
    }
    bool complete = false;
    for (size_t i = 0; i < sets.size(); ++i) complete = complete || have[i] == sets[i].size();
    if (complete != step.crossed) steps.push_back(step);
  }
  return steps;
}

// All ask for x, again and again and at once; failures reach the ranks at any time.
void AskAgainAtOnce(uint64_t seed) {
  const std::vector<std::vector<int>> sets = {
      {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1}, {1, 2, 3}, {2, 3}};
  constexpr int kRanks = 4;
  const std::vector<Step> steps = RandomSteps(sets, kRanks, 10, seed);
  Job job(kRanks, sets, seed);
  std::atomic<int> finished{0};
  const auto program = [&](int rank) {
    for (size_t i = 0; i < steps.size() && !::testing::Test::HasFailure(); ++i) {
      const int set = steps[i].sets[static_cast<size_t>(rank)];
      const std::string error = job.Wait(rank, set, job.Ask(rank, set, "x"));
      EXPECT_EQ(error.empty(), !steps[i].crossed)
          << "seed " << seed << ", step " << i << ", rank " << rank << ": " << error;
    }
    ++finished;
  };
  std::array<std::deque<SetWaits>, kRanks> undecided;
  std::mt19937_64 random(seed);
  RunPrograms(job, program, [&] {
    EXPECT_TRUE(Until([&] {
      const SetWaits waits = job.Check();
      for (int rank = 0; rank < kRanks; ++rank) {
        auto& queue = undecided[static_cast<size_t>(rank)];
        queue.push_back(waits);
        while (!queue.empty() && random() % 3 != 0) {
          job.watch(rank).Decide(queue.front());
          queue.pop_front();
        }
      }
      return finished == kRanks;
    })) << "seed "
        << seed;
  });
}

class AskAgainTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(AskAgainTest, WhatIsAskedForAgainAtOnceIsNotTakenForWhatFails) {
  AskAgainAtOnce(GetParam());
}

INSTANTIATE_TEST_SUITE_P(FromSeed, AskAgainTest, ::testing::Range(uint64_t{1}, uint64_t{13}));

}  // namespace
}  // namespace tutti::coordinator
