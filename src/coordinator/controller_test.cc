#include "coordinator/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "coordinator/testing/simulated_network.h"

namespace tutti::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::string_literals;

std::unique_ptr<Tensor> Ask(const std::string& name, std::vector<int64_t> shape = {4},
                            OpKind kind = OpKind::kAllreduce) {
  auto p = std::make_unique<Tensor>();
  p->name = name;
  p->request.kind = kind;
  p->request.shape = std::move(shape);
  return p;
}

std::vector<int> Identity(int num_ranks) {
  std::vector<int> members(static_cast<size_t>(num_ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

std::vector<std::string> Names(const RoundResult& result) {
  std::vector<std::string> names;
  for (const Response& response : result.responses) names.push_back(response.agreement().name);
  return names;
}

// Controllers of some ranks, driven in lockstep: each Round runs on a thread per rank.
class Fleet {
 public:
  explicit Fleet(int num_ranks, size_t capacity = 1024)
      : network_({.num_ranks = num_ranks}), order_(static_cast<size_t>(num_ranks)) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      exchanges_.push_back(network_.Join(rank));
      controllers_.push_back(
          std::make_unique<Controller>(*exchanges_.back(), Identity(num_ranks), capacity));
    }
  }

  std::vector<RoundResult> Round(const std::function<void(int, RoundInput&)>& fill) {
    std::vector<RoundResult> results(controllers_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < controllers_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        RoundInput input;
        fill(static_cast<int>(rank), input);
        for (auto& p : input.news) p->order = order_[rank]++;
        Result<RoundResult> result = controllers_[rank]->Round(std::move(input));
        ASSERT_TRUE(result.ok()) << result.status().message();
        results[rank] = std::move(result).value();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return results;
  }

  Controller& controller(int rank) { return *controllers_[static_cast<size_t>(rank)]; }
  SimulatedNetwork& network() { return network_; }

 private:
  SimulatedNetwork network_;
  std::vector<uint64_t> order_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::unique_ptr<Controller>> controllers_;
};

TEST(ControllerTest, WhatAllRanksAskForRunsInTheOrderOfTheLowestRank) {
  Fleet fleet(3);
  const auto results = fleet.Round([](int rank, RoundInput& input) {
    input.news.push_back(Ask(rank == 0 ? "b" : "a"));
    input.news.push_back(Ask(rank == 0 ? "a" : "b"));
  });
  for (const RoundResult& result : results) {
    EXPECT_THAT(Names(result), ElementsAre("b", "a"));
    EXPECT_TRUE(result.negotiated);
    EXPECT_TRUE(result.news);
    EXPECT_EQ(result.responses[0].error, "");
    EXPECT_NE(result.responses[0].pending, nullptr);
  }
}

TEST(ControllerTest, ATensorWaitsForTheLastRank) {
  Fleet fleet(2);
  auto results = fleet.Round([](int rank, RoundInput& input) {
    if (rank == 1) input.news.push_back(Ask("a"));
  });
  EXPECT_THAT(Names(results[0]), IsEmpty());
  EXPECT_TRUE(fleet.controller(1).HasPending());
  results = fleet.Round([](int, RoundInput&) {});
  EXPECT_FALSE(results[0].news);
  EXPECT_FALSE(results[1].news);
  results = fleet.Round([](int rank, RoundInput& input) {
    if (rank == 0) input.news.push_back(Ask("a"));
  });
  EXPECT_THAT(Names(results[0]), ElementsAre("a"));
  EXPECT_THAT(Names(results[1]), ElementsAre("a"));
}

TEST(ControllerTest, TheSecondTimeOnlyStatesAreExchanged) {
  for (const OpKind kind : {OpKind::kAllreduce, OpKind::kAllgather, OpKind::kBroadcast,
                            OpKind::kAlltoall, OpKind::kReducescatter, OpKind::kBarrier}) {
    Fleet fleet(3);
    const auto ask = [&](int rank, RoundInput& input) {
      const bool rows = kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
      input.news.push_back(Ask("a", {rows ? rank + 1 : 2, 3}, kind));
    };
    EXPECT_TRUE(fleet.Round(ask)[0].negotiated) << Name(kind);
    const auto results = fleet.Round(ask);
    for (const RoundResult& result : results) {
      EXPECT_FALSE(result.negotiated) << Name(kind);
      ASSERT_THAT(Names(result), ElementsAre("a")) << Name(kind);
      EXPECT_TRUE(result.responses[0].cached);
      if (kind == OpKind::kAllgather) {
        EXPECT_THAT(result.responses[0].agreement().first_dims, ElementsAre(1, 2, 3));
      }
    }
  }
}

// A sequence number stands for one list of responses, as long as the list comes again.
TEST(ControllerTest, StepsThatRepeatThemselvesAreRecognised) {
  Fleet fleet(2);
  const auto step = [&](const std::vector<std::string>& names, int64_t elements) {
    const auto results = fleet.Round([&](int rank, RoundInput& input) {
      std::vector<std::string> mine = names;
      if (rank == 1) std::reverse(mine.begin(), mine.end());
      for (const std::string& name : mine) input.news.push_back(Ask(name, {elements}));
    });
    EXPECT_EQ(Names(results[0]), Names(results[1]));
    EXPECT_EQ(results[0].sequence == 0, results[0].negotiated);
    return results[0].sequence;
  };
  EXPECT_EQ(step({"a", "b", "c"}, 100), 0u);
  const uint64_t first = step({"a", "b", "c"}, 100);
  EXPECT_NE(first, 0u);
  EXPECT_EQ(step({"c", "b", "a"}, 100), first);
  const uint64_t fewer = step({"a", "b"}, 100);
  EXPECT_NE(fewer, first);
  EXPECT_EQ(step({"a", "b"}, 100), fewer);
  EXPECT_EQ(step({"a", "b"}, 200), 0u);  // negotiated anew
  const uint64_t larger = step({"a", "b"}, 200);
  EXPECT_NE(larger, 0u);
  EXPECT_NE(larger, fewer);
}

TEST(ControllerTest, AChangedShapeIsNegotiatedAnewAtOnce) {
  Fleet fleet(2);
  fleet.Round([](int, RoundInput& input) { input.news.push_back(Ask("a", {4})); });
  // Rank 1 is late, and has changed its shape; rank 0 announced the old shape from its cache.
  fleet.Round([](int rank, RoundInput& input) {
    if (rank == 0) input.news.push_back(Ask("a", {4}));
  });
  const auto results = fleet.Round([](int rank, RoundInput& input) {
    if (rank == 1) input.news.push_back(Ask("a", {5}));
  });
  ASSERT_THAT(Names(results[0]), ElementsAre("a"));
  EXPECT_EQ(results[0].responses[0].error,
            "Ranks disagree on the shape of allreduce \"a\": (4) on rank 0, (5) on rank 1.");
  EXPECT_EQ(results[1].responses[0].error, results[0].responses[0].error);
}

TEST(ControllerTest, EveryMismatchIsOneSentenceOnEveryRank) {
  const auto expect = [](const std::function<void(Request&)>& change, const std::string& text,
                         OpKind kind = OpKind::kAllreduce) {
    Fleet fleet(4);
    const auto results = fleet.Round([&](int rank, RoundInput& input) {
      input.news.push_back(Ask("t", {2, 3}, kind));
      if (rank == 2) change(input.news.back()->request);
    });
    for (const RoundResult& result : results) {
      ASSERT_FALSE(result.responses.empty()) << text;
      EXPECT_EQ(result.responses[0].error, results[0].responses[0].error);
      EXPECT_THAT(result.responses[0].error, HasSubstr(text));
      EXPECT_THAT(result.responses[0].error, HasSubstr("on rank 2"));
      EXPECT_THAT(result.responses[0].error, HasSubstr("on ranks 0, 1 and 3"));
      EXPECT_THAT(result.responses[0].error, HasSubstr("\"t\""));
    }
    // The job lives on, with the same name.
    const auto after = fleet.Round([&](int, RoundInput& input) {
      input.news.push_back(Ask("t", {2, 3}, kind));
    });
    ASSERT_EQ(after[3].responses.size(), 1u);
    EXPECT_EQ(after[3].responses[0].error, "");
  };
  expect([](Request& r) { r.type = ElementType::kFloat64; }, "float64");
  expect([](Request& r) { r.kind = OpKind::kAllgather; }, "the operation");
  expect([](Request& r) { r.shape = {2, 4}; }, "(2, 4)");
  expect([](Request& r) { r.shape = {6}; }, "(6)");
  expect([](Request& r) { r.prescale = 2; }, "prescale 2");
  expect([](Request& r) { r.op = ReduceOp::kMax; }, "max");
  expect([](Request& r) { r.root = 1; }, "the root rank", OpKind::kBroadcast);
  expect([](Request& r) { r.device = 0; }, "GPU");
  expect([](Request& r) { r.shape = {2, 4}; }, "all but the first (4)", OpKind::kAllgather);
  expect([](Request& r) { r.shape = {2}; }, "1 dimensions", OpKind::kAlltoall);
  expect([](Request& r) { r.compression = Compression::kFloat16; }, "float16");
  expect(
      [](Request& r) {
        r.group = "g";
        r.group_size = 1;
      },
      "group \"g\" of 1");
  expect([](Request& r) { r.shape = {0, 1}; }, "(0, 1)", OpKind::kAddSet);
}

TEST(ControllerTest, AGroupRunsWholeOrNotAtAll) {
  Fleet fleet(2);
  const auto member = [](const std::string& name) {
    auto p = Ask(name);
    p->request.group = "g";
    p->request.group_size = 2;
    return p;
  };
  for (const bool cached : {false, true}) {
    auto results = fleet.Round([&](int rank, RoundInput& input) {
      input.news.push_back(member("g_0of2"));
      if (rank == 0) input.news.push_back(member("g_1of2"));
    });
    EXPECT_THAT(Names(results[0]), IsEmpty()) << cached;
    results = fleet.Round([&](int rank, RoundInput& input) {
      if (rank == 1) input.news.push_back(member("g_1of2"));
    });
    EXPECT_THAT(Names(results[0]), ElementsAre("g_0of2", "g_1of2")) << cached;
    EXPECT_EQ(Names(results[1]), Names(results[0]));
  }
}

TEST(ControllerTest, AGroupOnWhichRanksDisagreeFailsWhole) {
  Fleet fleet(2);
  const auto results = fleet.Round([&](int rank, RoundInput& input) {
    const uint32_t size = rank == 0 ? 2 : 3;
    for (uint32_t i = 0; i < size; ++i) {
      input.news.push_back(Ask("g" + std::to_string(i)));
      input.news.back()->request.group = "g";
      input.news.back()->request.group_size = size;
    }
  });
  EXPECT_EQ(results[0].responses.size(), 3u);
  for (const Response& response : results[0].responses) {
    EXPECT_THAT(response.error,
                HasSubstr("group \"g\" of 2 on rank 0, group \"g\" of 3 on rank 1"));
  }
  EXPECT_FALSE(fleet.controller(0).HasPending());
  EXPECT_FALSE(fleet.controller(1).HasPending());
}

TEST(ControllerTest, JoinedRanksStandAsideUntilAllHaveJoined) {
  Fleet fleet(3);
  const auto ask = [](RoundInput& input) {
    input.news.push_back(Ask("r"));
    input.news.push_back(Ask("g", {2, 2}, OpKind::kAllgather));
  };
  fleet.Round([&](int, RoundInput& input) { ask(input); });
  auto results = fleet.Round([&](int rank, RoundInput& input) {
    if (rank == 1) {
      input.joining = true;
    } else {
      ask(input);
    }
  });
  for (int again = 0; again < 2; ++again) {
    // A tensor announced from the cache in the round in which rank 1 joined runs in the next round.
    results = fleet.Round([&](int rank, RoundInput& input) {
      if (again == 1 && rank != 1) ask(input);
    });
    EXPECT_THAT(Names(results[0]), ElementsAre("r", "g"));
    EXPECT_EQ(results[1].responses[0].pending, nullptr);
    EXPECT_NE(results[2].responses[0].pending, nullptr);
    EXPECT_THAT(results[1].responses[1].agreement().first_dims, ElementsAre(2, 0, 2));
  }
  results = fleet.Round([&](int rank, RoundInput& input) { input.joining = rank == 2; });
  EXPECT_EQ(results[0].last_joined, std::nullopt);
  results = fleet.Round([&](int rank, RoundInput& input) { input.joining = rank == 0; });
  for (const RoundResult& result : results) EXPECT_EQ(result.last_joined, 0);
  EXPECT_FALSE(fleet.controller(1).joined());
  results = fleet.Round([&](int, RoundInput& input) { ask(input); });
  EXPECT_THAT(Names(results[1]), ElementsAre("r", "g"));
}

TEST(ControllerTest, LeavingIsKnownToAllWithItsReason) {
  Fleet fleet(3);
  const auto results = fleet.Round([](int rank, RoundInput& input) {
    if (rank == 1) input.leaving = "it was time";
    if (rank == 2) input.news.push_back(Ask("a"));
  });
  for (const RoundResult& result : results) {
    ASSERT_EQ(result.leaving.size(), 1u);
    EXPECT_EQ(result.leaving.at(1), "it was time");
  }
  EXPECT_EQ(fleet.controller(2).TakeAll().size(), 1u);
}

TEST(ControllerTest, AStallCheckSaysWhoIsMissingAndWhatItDoes) {
  for (const bool cached : {false, true}) {
    Fleet fleet(3);
    if (cached) fleet.Round([](int, RoundInput& input) { input.news.push_back(Ask("a")); });
    fleet.Round([](int rank, RoundInput& input) {
      if (rank != 1) input.news.push_back(Ask("a"));
      if (rank == 1) input.news.push_back(Ask("other"));
    });
    const auto results = fleet.Round([](int rank, RoundInput& input) {
      input.stall_check = rank == 0;
      input.late_before_ns = rank == 0 ? 1 : 0;  // all tensors here are from time 0
      input.activity = [rank] { return "rank " + std::to_string(rank) + " says"; };
    });
    for (const RoundResult& result : results) {
      ASSERT_EQ(result.stalls.size(), 1u);
      EXPECT_EQ(result.stalls[0].name, "a");
      EXPECT_EQ(result.stalls[0].have.ToString(), "0 and 2");
      EXPECT_EQ(result.stalls[0].missing.ToString(), "1");
      EXPECT_EQ(result.activities.at(1), "rank 1 says");
    }
  }
}

// Rank 1 knows first, and asks again in the round in which rank 1 tells the others.
TEST(ControllerTest, PendingFailuresFailTensorsWhereTheyAre) {
  for (const bool cached : {false, true}) {
    Fleet fleet(3);
    if (cached) fleet.Round([](int, RoundInput& input) { input.news.push_back(Ask("a")); });
    fleet.Round([](int rank, RoundInput& input) {
      if (rank != 1) input.news.push_back(Ask("a"));
    });
    const PendingFailure failure = {1,
                                    [] {
                                      RankSet ranks = RankSet::Of(0);
                                      ranks.Add(2);
                                      return ranks;
                                    }(),
                                    "no"};
    auto results = fleet.Round([&](int rank, RoundInput& input) {
      if (rank != 1) return;
      input.pending_failures["a"] = failure;
      input.news.push_back(Ask("a"));
    });
    for (const int rank : {0, 2}) {
      ASSERT_EQ(Names(results[static_cast<size_t>(rank)]), std::vector{"a"s});
      EXPECT_EQ(results[static_cast<size_t>(rank)].responses[0].error, "no");
      EXPECT_NE(results[static_cast<size_t>(rank)].responses[0].pending, nullptr);
    }
    EXPECT_THAT(Names(results[1]), IsEmpty());
    // The others, who learn of the failure later, hit no newer request.
    results = fleet.Round([&](int rank, RoundInput& input) {
      if (rank == 0) input.pending_failures["a"] = failure;
      if (rank == 2) input.news.push_back(Ask("a"));
    });
    for (const RoundResult& result : results) EXPECT_THAT(Names(result), IsEmpty());
    results = fleet.Round([](int rank, RoundInput& input) {
      if (rank == 0) input.news.push_back(Ask("a"));
    });
    for (const RoundResult& result : results) {
      ASSERT_EQ(Names(result), std::vector{"a"s});
      EXPECT_EQ(result.responses[0].error, "");
    }
  }
}

// A peer that has the job's key, and sends arbitrary messages.
class HostileExchange final : public Exchange {
 public:
  using Answer = std::function<Bytes()>;
  using State = std::function<uint8_t(uint8_t)>;
  HostileExchange(int num_ranks, Answer answer, State state)
      : num_ranks_(num_ranks), answer_(std::move(answer)), state_(std::move(state)) {}
  std::string_view name() const override { return "hostile"; }
  int rank() const override { return 0; }
  int num_ranks() const override { return num_ranks_; }
  Result<Bytes> Swap(int, std::span<const std::byte>, int) override { return answer_(); }
  Status Min(std::span<uint8_t> values) override {
    for (uint8_t& value : values) value = std::min(value, state_(value));
    return Status::Ok();
  }

 private:
  const int num_ranks_;
  const Answer answer_;
  const State state_;
};

TEST(ControllerTest, NobodySpeaksForAnother) {
  for (const bool joining : {false, true}) {
    RoundMessage message;
    RankSet both = RankSet::Of(0);
    both.Add(1);
    if (joining) message.joining = both;
    if (!joining) message.claims["x"].variants.push_back({Ask("x")->request, both});
    HostileExchange exchange(
        2, [&] { return message.Encode(); }, [](uint8_t) { return uint8_t{0}; });
    Controller controller(exchange, Identity(2), 16);
    const auto result = controller.Round(RoundInput());
    ASSERT_FALSE(result.ok());
    EXPECT_THAT(result.status().message(), HasSubstr("in the name of rank 0"));
  }
}

// Returns a random message that a peer could send.
RoundMessage RandomMessage(std::mt19937_64& random, int num_ranks) {
  const auto below = [&](uint64_t n) { return random() % n; };
  const auto ranks = [&] {
    RankSet set = RankSet::Of(static_cast<int>(below(static_cast<uint64_t>(num_ranks))));
    for (int rank = 0; rank < num_ranks; ++rank) {
      if (below(2) == 0) set.Add(rank);
    }
    return set;
  };
  const auto name = [&] { return "t" + std::to_string(below(6)); };
  RoundMessage message;
  for (uint64_t i = below(4); i > 0; --i) {
    Claim& claim = message.claims[name()];
    claim.variants.clear();
    claim.order = random();
    for (uint64_t k = 1 + below(2); k > 0; --k) {
      Request request;
      request.kind = static_cast<OpKind>(below(kNumOpKinds));
      request.root = static_cast<int>(below(5)) - 1;
      request.shape.assign(below(3), static_cast<int64_t>(below(4)));
      request.group = below(3) == 0 ? "g" : "";
      request.group_size = static_cast<uint32_t>(below(4));
      RankSet others;
      for (const int rank : ranks().ToVector()) {
        if (rank != 0) others.Add(rank);
      }
      if (!others.empty()) claim.variants.push_back({request, others});
    }
    if (claim.variants.empty()) message.claims.clear();
  }
  if (below(8) == 0) message.joining = RankSet::Of(1);
  if (below(30) == 0) message.leaving[1] = "bye";
  if (below(4) == 0) message.waiting[name()] = {ranks(), ranks()};
  if (below(4) == 0) message.activities[1] = "is idle";
  if (below(3) == 0) message.pending_failures[name()] = {below(40), ranks(), "no"};
  if (below(9) == 0) message.tuning = Tuning{1, 1, true, below(2) == 0};
  return message;
}

TEST(ControllerTest, SurvivesWhateverAPeerSends) {
  constexpr int kRanks = 3;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    HostileExchange exchange(
        kRanks,
        [&] {
          Bytes bytes = RandomMessage(random, kRanks).Encode();
          for (uint64_t i = random() % 4; i > 1; --i) {
            bytes[random() % bytes.size()] = static_cast<std::byte>(random());
          }
          return bytes;
        },
        [&](uint8_t mine) {
          return random() % 3 == 0 ? static_cast<uint8_t>(random() % 4) : mine;
        });
    Controller controller(exchange, Identity(kRanks), 4);
    std::set<std::string> busy;
    for (int round = 0; round < 40; ++round) {
      RoundInput input;
      input.stall_check = random() % 4 == 0;
      for (uint64_t i = random() % 3; i > 0; --i) {
        const std::string name = "t" + std::to_string(random() % 6);
        if (!busy.insert(name).second) continue;
        input.news.push_back(Ask(name, {static_cast<int64_t>(random() % 3)}));
      }
      auto result = controller.Round(input);
      if (!result.ok()) break;
      for (const Response& response : result->responses) {
        if (response.pending) busy.erase(response.pending->name);
      }
    }
    controller.TakeAll();
  }
}

TEST(RoundMessageTest, TextsOfARankBecomePrintableAndNamesToBeShownAreDemanded) {
  RoundMessage message;
  message.leaving[1] = "gone\n\x1b[2J";
  message.pending_failures["t"].ranks.Add(1);
  message.pending_failures["t"].sentence = "no\rway";
  Result<RoundMessage> read = RoundMessage::Decode(message.Encode(), 2);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->leaving[1], "gone??[2J");
  EXPECT_EQ(read->pending_failures["t"].sentence, "no?way");
  message.pending_failures["a line\nend"] = message.pending_failures["t"];
  EXPECT_FALSE(RoundMessage::Decode(message.Encode(), 2).ok());
}

TEST(ControllerTest, ALostRankEndsTheRoundEverywhere) {
  SimulatedNetwork network({.num_ranks = 3});
  std::vector<std::thread> threads;
  for (const int rank : {0, 2}) {
    threads.emplace_back([&network, rank] {
      const auto exchange = network.Join(rank);
      Controller controller(*exchange, Identity(3), 16);
      RoundInput input;
      input.news.push_back(Ask("a"));
      const auto result = controller.Round(std::move(input));
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.status().message(), "rank 1 is lost");
      EXPECT_EQ(controller.TakeAll().size(), 1u);
    });
  }
  network.Kill(1);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tutti::coordinator
