// Fleets of simulated ranks: random traffic, delay and death, with seeds; and the costs of
// negotiation.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include "coordinator/controller.h"
#include "coordinator/testing/simulated_network.h"

namespace tutti::coordinator {
namespace {

std::vector<int> Identity(int num_ranks) {
  std::vector<int> members(static_cast<size_t>(num_ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

void RunFleet(int num_ranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

std::unique_ptr<Tensor> Ask(const std::string& name, int64_t size, uint64_t order) {
  auto p = std::make_unique<Tensor>();
  p->name = name;
  p->request.shape = {size};
  p->order = order;
  return p;
}

// Describes the contents of the cache, slot by slot, and the order of eviction.
std::string Describe(const ResponseCache& cache) {
  std::string text;
  for (int slot = 0; slot < cache.extent(); ++slot) {
    text += cache.InUse(slot) ? cache.at(slot).agreement().name : "-";
    text += ' ';
  }
  return text;
}

// Every rank asks for the same tensors, each in an order and at times of its own; tensors change
// their shape, more exist than the cache holds, groups come and go. After every round all caches
// must be the same, and all ranks must have run the same tensors in the same order.
void RandomTraffic(uint64_t seed) {
  constexpr int kRanks = 5;
  constexpr int kRounds = 120;
  constexpr int kNames = 24;
  constexpr size_t kCapacity = 10;
  SimulatedNetwork network({.num_ranks = kRanks, .jitter_ns = 5000, .seed = seed});
  std::vector<std::vector<std::string>> histories(kRanks);
  std::vector<int> finished(kRanks, 0);
  RunFleet(kRanks, [&](int rank) {
    const auto exchange = network.Join(rank);
    Controller controller(*exchange, Identity(kRanks), kCapacity);
    // The job is the same on all ranks; the times of the requests are not.
    std::mt19937_64 job(seed);
    std::mt19937_64 self(seed * 31 + static_cast<uint64_t>(rank));
    std::vector<std::unique_ptr<Tensor>> todo;
    std::vector<int> times_used(kNames, 0);
    uint64_t order = 0;
    int wave = 0;
    int running = 0;
    for (int round = 0; round < kRounds; ++round) {
      if (todo.empty() && running == 0 && round < kRounds - 30) {
        const bool grouped = job() % 4 == 0;
        const int count = 1 + static_cast<int>(job() % 8);
        const auto first = static_cast<int>(job() % kNames);
        const int64_t size = 1 + static_cast<int64_t>(job() % 8 == 0 ? job() % 3 : 0);
        for (int i = 0; i < count; ++i) {
          todo.push_back(Ask("t" + std::to_string((first + i) % kNames), size, 0));
          if (!grouped) continue;
          todo.back()->request.group = "g" + std::to_string(first);
          todo.back()->request.group_size = static_cast<uint32_t>(count);
        }
        running = count;
        ++wave;
        if (!grouped) std::shuffle(todo.begin(), todo.end(), self);
      }
      RoundInput input;
      const bool whole = !todo.empty() && todo.front()->request.group_size > 0;
      while (!todo.empty() && (whole || self() % 3 != 0)) {
        todo.back()->order = order++;
        input.news.push_back(std::move(todo.back()));
        todo.pop_back();
      }
      Result<RoundResult> result = controller.Round(std::move(input));
      ASSERT_TRUE(result.ok()) << "seed " << seed;
      std::string line = Describe(controller.cache()) + "|";
      for (const Response& response : result->responses) {
        ASSERT_EQ(response.error, "") << "seed " << seed;
        ASSERT_NE(response.pending, nullptr) << "seed " << seed;
        line += " " + response.agreement().name;
        --running;
      }
      histories[static_cast<size_t>(rank)].push_back(line);
    }
    finished[static_cast<size_t>(rank)] = running == 0 && todo.empty() ? wave : -1;
  });
  for (int rank = 1; rank < kRanks; ++rank) {
    ASSERT_EQ(histories[static_cast<size_t>(rank)], histories[0]) << "seed " << seed;
  }
  EXPECT_THAT(finished, ::testing::Each(::testing::Gt(5))) << "seed " << seed;
}

TEST(FleetTest, CachesAndOrdersAreTheSameOnAllRanksUnderRandomTraffic) {
  for (uint64_t seed = 1; seed <= 12; ++seed) RandomTraffic(seed);
}

TEST(FleetTest, HundredsOfRanksSurviveDelayAndEndWithTheDead) {
  constexpr int kRanks = 200;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SimulatedNetwork network(
        {.num_ranks = kRanks, .delay_ns = 10'000, .jitter_ns = 50'000, .seed = seed});
    const int victim = static_cast<int>(std::mt19937_64(seed)() % kRanks);
    std::atomic<int> ended{0};
    RunFleet(kRanks, [&](int rank) {
      const auto exchange = network.Join(rank);
      Controller controller(*exchange, Identity(kRanks), 64);
      for (int step = 0;; ++step) {
        if (rank == victim && step == 5) {
          network.Kill(rank);
          return;
        }
        RoundInput input;
        for (uint64_t i = 0; i < 5; ++i) {
          input.news.push_back(Ask("t" + std::to_string(i), 4, i));
        }
        const auto result = controller.Round(std::move(input));
        if (!result.ok()) {
          EXPECT_EQ(result.status().message(), fmt::format("rank {} is lost", victim))
              << "seed " << seed;
          ++ended;
          return;
        }
        EXPECT_EQ(result->responses.size(), 5u) << "seed " << seed;
        EXPECT_LE(step, 6);
      }
    });
    EXPECT_EQ(ended.load(), kRanks - 1) << "seed " << seed;
  }
}

// Messages and time grow as log n, and nobody, rank 0 included, handles more than its share.
TEST(FleetTest, NegotiationTakesLogarithmicMessagesAndTime) {
  for (const int ranks : {2, 16, 100, 256}) {
    SimulatedNetwork network({.num_ranks = ranks, .delay_ns = 10'000, .handling_ns = 1'000});
    std::vector<SimulatedNetwork::Counts> first(static_cast<size_t>(ranks));
    RunFleet(ranks, [&](int rank) {
      const auto exchange = network.Join(rank);
      Controller controller(*exchange, Identity(ranks), 64);
      for (int step = 0; step < 2; ++step) {
        RoundInput input;
        input.news.push_back(Ask("t", 4, 0));
        ASSERT_TRUE(controller.Round(std::move(input)).ok());
        if (step == 0) first[static_cast<size_t>(rank)] = network.counts(rank);
      }
    });
    const auto log = static_cast<int64_t>(std::ceil(std::log2(ranks)));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto all = network.counts(rank);
      const auto& begin = first[static_cast<size_t>(rank)];
      EXPECT_EQ(begin.received, 2 * log) << ranks;             // states and requests
      EXPECT_EQ(all.received - begin.received, log) << ranks;  // states
      EXPECT_LE(all.clock_ns - begin.clock_ns, log * 12'000 + 1) << ranks;
    }
  }
}

TEST(RankSetTest, IntervalsMergeAndPrint) {
  RankSet set;
  for (const int rank : {5, 1, 3, 2, 9, 0}) set.Add(rank);
  EXPECT_EQ(set.ToString(), "0-3, 5 and 9");
  EXPECT_EQ(set.size(), 6);
  EXPECT_TRUE(set.Contains(5));
  EXPECT_FALSE(set.Contains(4));
  EXPECT_EQ(set.Complement(11).ToString(), "4, 6-8 and 10");
  RankSet other = RankSet::Of(4);
  other.Union(set);
  EXPECT_EQ(other.Describe(), "ranks 0-5 and 9");
  EXPECT_EQ(RankSet::Of(7).Describe(), "rank 7");
}

// Whatever bytes come, decoding ends with a Status; and a written message is read back the same.
TEST(RoundMessageTest, EveryDamagedMessageIsRefusedOrWellFormed) {
  RoundMessage message;
  Claim& claim = message.claims["tensor"];
  claim.order = 7;
  claim.variants.push_back({Ask("x", 4, 0)->request, RankSet::Of(1)});
  message.joining.Add(2);
  message.leaving[3] = "why";
  message.waiting["w"].have.Add(1);
  message.activities[0] = "busy";
  message.tuning = Tuning{};
  const Bytes bytes = message.Encode();
  const auto back = RoundMessage::Decode(bytes, 4);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->Encode(), bytes);
  EXPECT_FALSE(RoundMessage::Decode(bytes, 2).ok());  // names ranks outside the set
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(RoundMessage::Decode(std::span(bytes).first(cut), 4).ok()) << cut;
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000; ++i) {
    Bytes damaged = bytes;
    for (uint64_t k = 0; k <= random() % 3; ++k) {
      damaged[random() % damaged.size()] = std::byte(random() & 0xff);
    }
    const auto result = RoundMessage::Decode(damaged, 4);
    if (result.ok()) {
      EXPECT_TRUE(RoundMessage::Decode(result->Encode(), 4).ok());
    }
  }
}

}  // namespace
}  // namespace tutti::coordinator
