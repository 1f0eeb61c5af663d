// Waits that last: the questions, the sentences, the end.

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "watch/testing/watch_network.h"
#include "watch/watch.h"

namespace tutti {
namespace {

using testing::AllReduceOf;
using testing::ExpectWords;
using testing::MessageOf;
using Network = testing::WatchNetwork;

constexpr int64_t kMs = 1'000'000;

// Returns a wait that began `ms` ago, and whose thread has looked last `looked_ms` later.
LongWait WaitOf(int64_t ms, int64_t looked_ms = 0) {
  LongWait wait;
  const int64_t begin_ns = NowNs() - ms * kMs;
  wait.Begin(begin_ns);
  for (int64_t at = 50; at <= looked_ms; at += 50) wait.Look(begin_ns + at * kMs, 0);
  return wait;
}

// Returns what the wait of `rank` for `peer` in a joint call says when its time is over. The first
// look asks, and the answers come at once.
Status JointWaitOver(Network& network, int rank, int peer) {
  LongWait wait = WaitOf(250);
  EXPECT_TRUE(network.watch(rank).OnJointWait(peer, wait, 0).ok());
  return network.watch(rank).OnJointWait(peer, wait, 1);
}

// Returns the activity of the other rank of the network, as rank 0 hears it.
std::string WhatRank1Does(Network& network) {
  const std::string said(JointWaitOver(network, 0, 1).message());
  const size_t from = said.find("; "), to = said.find(". TUTTI");
  return from == said.npos || to == said.npos ? said : said.substr(from, to - from);
}

TEST(WatchWaitsTest, AStepThatEndsRestoresTheOneBefore) {
  Network network(2);
  EXPECT_EQ(WhatRank1Does(network), "; rank 1 is idle, no collective called yet");
  {
    const Watch::Step outer(network.watch(1), "in the outer step");
    {
      const Watch::Step inner(network.watch(1), "in the inner step");
      EXPECT_EQ(WhatRank1Does(network), "; rank 1 is in the inner step");
    }
    EXPECT_EQ(WhatRank1Does(network), "; rank 1 is in the outer step");
  }
  EXPECT_EQ(WhatRank1Does(network), "; rank 1 is idle, no collective called yet");
}

TEST(WatchWaitsTest, StepsOfTwoThreadsMayEndInAnyOrder) {
  Network network(2);
  auto first = std::make_unique<Watch::Step>(network.watch(1), "in the first step");
  auto second = std::make_unique<Watch::Step>(network.watch(1), "in the second step");
  first.reset();
  EXPECT_EQ(WhatRank1Does(network), "; rank 1 is in the second step");
  second.reset();
  EXPECT_EQ(WhatRank1Does(network), "; rank 1 is idle, no collective called yet");
}

TEST(WatchWaitsTest, ARankSaysWhatItIsIn) {
  Network network(2);
  {
    OpSignature signature = AllReduceOf(5);
    const Watch::Operation begun(network.watch(1), signature, nullptr);
    EXPECT_EQ(WhatRank1Does(network),
              "; rank 1 is in collective number 1, AllReduce(count 5, float32)");
  }
  EXPECT_EQ(WhatRank1Does(network),
            "; rank 1 is idle after collective number 1, AllReduce(count 5, float32)");
  MessageCall message = MessageOf(0, /*is_send=*/true, 1);
  const Watch::Operation begun(network.watch(1), std::span(&message, 1));
  EXPECT_EQ(WhatRank1Does(network),
            "; rank 1 is in a group of 1 sends and receives after collective number 1");
}

TEST(WatchWaitsTest, ATimeoutSaysWhatTheOthersDo) {
  Network network(2, /*timeout_ns=*/1000 * kMs);
  const Watch::Step step(network.watch(1), "in a long step");
  OpSignature signature = AllReduceOf(5);
  const Watch::Operation begun(network.watch(0), signature, nullptr);
  const int peer = 1;
  LongWait wait = WaitOf(900, 850);
  EXPECT_TRUE(network.watch(0).OnLongWait(std::span(&peer, 1), wait).ok());
  LongWait later = WaitOf(1100, 1050);
  const Status stalled = network.watch(0).OnLongWait(std::span(&peer, 1), later);
  EXPECT_EQ(stalled.code(), Code::kTimeout);
  ExpectWords(stalled, {"communicator tp (0000000000000001): rank 0 has waited 1.1 s for rank 1",
                        "rank 1 is in a long step", "TUTTI_TIMEOUT_S"});
  EXPECT_EQ(network.watch(1).StopReason().message(), stalled.message());
  EXPECT_EQ(network.watch(0).HungRanks(), std::vector<int>());
}

// Rank 0 waits for rank 1, which waits for rank 2, which is stopped.
TEST(WatchWaitsTest, TheEndOfTheChainIsNamedAndHungForAll) {
  Network network(4);
  network.Silence(2);
  const Watch::Step here(network.watch(0), "in ncclCommSplit");
  const Watch::Step there(network.watch(1), "in ncclCommSplit");
  LongWait wait = WaitOf(0);
  EXPECT_TRUE(network.watch(1).OnJointWait(2, wait, 0).ok());
  const Status over = JointWaitOver(network, 0, 1);
  EXPECT_EQ(over.code(), Code::kTimeout);
  ExpectWords(over, {"rank 0 has waited", "for rank 1, in ncclCommSplit; rank 2 does not answer",
                     "rank 1 is in ncclCommSplit, and waits for rank 2", "TUTTI_INIT_TIMEOUT_S"});
  for (const int rank : {0, 1, 3})
    EXPECT_EQ(network.watch(rank).HungRanks(), std::vector<int>{2}) << rank;
  EXPECT_FALSE(network.watch(0).stopped());
}

// Rank 0 waits for rank 1. Rank 1 is in the same call, waits for rank 3, and does not say so.
TEST(WatchWaitsTest, ASilentRankIsNamedThoughNobodyTellsOfAWaitForIt) {
  Network network(4);
  network.Silence(3);
  const Watch::Step here(network.watch(0), "in ncclCommWindowRegister");
  const Watch::Step there(network.watch(1), "in ncclCommWindowRegister");
  // The first question finds the end of the chain. The second question reaches the linked ranks.
  static_cast<void>(JointWaitOver(network, 0, 1));
  const Status over = JointWaitOver(network, 0, 1);
  ExpectWords(over, {"rank 0 has waited", "for rank 1", "rank 3 does not answer"});
  EXPECT_EQ(network.watch(2).HungRanks(), std::vector<int>{3});
}

TEST(WatchWaitsTest, RanksThatDoNotAnswerAreFoundHung) {
  Network network(4);
  network.Silence(3);
  network.watch(0).FindHungRanks();
  for (const int rank : {0, 1, 2})
    EXPECT_EQ(network.watch(rank).HungRanks(), std::vector<int>{3}) << rank;
  EXPECT_FALSE(network.watch(0).stopped());
}

TEST(WatchWaitsTest, NobodyIsFoundHungWhereTheCommunicatorHasStopped) {
  Network network(4);
  network.Silence(3);
  network.watch(0).Stop(InternalError("the test says so"), /*tell=*/false);
  network.watch(0).FindHungRanks();
  EXPECT_TRUE(network.watch(0).HungRanks().empty());
}

// Both ranks of two communicators, used in opposite order.
TEST(WatchWaitsTest, AnIdleRankTellsOfTheWaitOfItsProcessElsewhere) {
  WaitBoard process_of_rank_1;
  Network one(2, 0, Watch::kExplainBrokenNs, nullptr, &process_of_rank_1, 1);
  Network other(2, 0, Watch::kExplainBrokenNs, nullptr, &process_of_rank_1, 2);
  OpSignature signature = AllReduceOf(5);
  const Watch::Operation begun(other.watch(1), signature, nullptr);
  const int peer = 0;
  LongWait wait = WaitOf(0);
  EXPECT_TRUE(other.watch(1).OnLongWait(std::span(&peer, 1), wait).ok());
  EXPECT_EQ(WhatRank1Does(one),
            "; rank 1 is idle, no collective called yet, and its process waits in communicator tp "
            "(0000000000000002) for rank 0, in collective number 1, AllReduce(count 5, float32)");
  for (const int rank : {0, 1}) {
    process_of_rank_1.Remove(one.watch(rank));
    process_of_rank_1.Remove(other.watch(rank));
  }
}

}  // namespace
}  // namespace tutti
