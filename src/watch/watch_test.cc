#include "watch/watch.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "testing/threads.h"
#include "watch/testing/watch_network.h"
#include "watch/wait_board.h"

namespace tutti {
namespace {

using testing::AllReduceOf;
using testing::ExpectWords;
using testing::Launch;
using testing::MessageOf;
using Network = testing::WatchNetwork;

void LaunchMessage(Watch& watch, MessageCall message) {
  const Watch::Operation begun(watch, std::span(&message, 1));
}

TEST(WatchTest, OperationsAreNumberedWhenTheyBegin) {
  Network network(2);
  OpSignature first = AllReduceOf(1), second = AllReduceOf(2);
  const Watch::Operation a(network.watch(0), first, nullptr);
  const Watch::Operation b(network.watch(0), second, nullptr);
  EXPECT_EQ(first.sequence, 1u);
  EXPECT_EQ(second.sequence, 2u);
}

TEST(WatchTest, LaunchedCollectivesThatDifferStopBothWithBothSides) {
  Network network(2);
  for (const int rank : {0, 1}) Launch(network.watch(rank), AllReduceOf(10));
  Launch(network.watch(0), AllReduceOf(20));
  Launch(network.watch(1), AllReduceOf(30));
  network.watch(0).CompareRecent(1);
  for (const int rank : {0, 1}) {
    ASSERT_TRUE(network.watch(rank).stopped());
    ExpectWords(network.watch(rank).StopReason(),
                {"number 2", "count 20", "count 30", "rank 0", "rank 1"});
  }
}

TEST(WatchTest, WhatIsAskedTooEarlyIsComparedWhenItBegins) {
  Network network(2);
  Launch(network.watch(0), AllReduceOf(20));
  network.watch(0).CompareRecent(1);
  EXPECT_FALSE(network.watch(1).stopped());
  Launch(network.watch(1), AllReduceOf(30));
  EXPECT_TRUE(network.watch(1).stopped());
}

TEST(WatchTest, EveryPairOfAnAlltoAllVIsCompared) {
  // Ranks 0 and 2 differ, of which neither shows its collectives to the other.
  const auto parts = [](std::vector<size_t> sends, std::vector<size_t> receives) {
    return std::make_shared<const VariableParts>(
        VariableParts{{std::move(sends), {}}, {std::move(receives), {}}});
  };
  OpSignature signature = AllReduceOf(0);
  signature.collective = Collective::kAlltoAllV;
  Network network(4);
  Launch(network.watch(0), signature, parts({1, 1, 30, 1}, {1, 1, 1, 1}));
  Launch(network.watch(2), signature, parts({1, 1, 1, 1}, {31, 1, 1, 1}));
  network.watch(0).CompareRecent(1);
  ExpectWords(network.watch(0).StopReason(),
              {"AlltoAllV", "rank 0 sends 30 elements", "rank 2, which expects 31"});
}

TEST(WatchTest, CountsThatAreForgottenAreNotCompared) {
  const auto ones =
      std::make_shared<const VariableParts>(VariableParts{{{1, 1}, {}}, {{1, 1}, {}}});
  OpSignature signature = AllReduceOf(0);
  signature.collective = Collective::kAlltoAllV;
  Network network(2);
  Launch(network.watch(1), signature, ones);
  for (size_t i = 0; i <= OperationLog::kExchanges; ++i) Launch(network.watch(0), signature, ones);
  network.watch(0).CompareRecent(1);
  EXPECT_FALSE(network.watch(1).stopped()) << network.watch(1).StopReason().message();
}

TEST(WatchTest, LaunchedMessagesNeedOnlyHaveAsManyBytes) {
  for (const uint64_t received : {40, 39}) {
    Network network(2);
    LaunchMessage(network.watch(0), MessageOf(1, /*is_send=*/true, 10));
    LaunchMessage(network.watch(1), MessageOf(0, /*is_send=*/false, received, DataType::kInt8));
    network.watch(0).CompareRecent(1);
    EXPECT_EQ(network.watch(1).stopped(), received != 40);
  }
}

TEST(WatchTest, AForeignTagShowsBothEndsOfTheMessage) {
  Network network(2);
  MessageCall sent = MessageOf(1, /*is_send=*/true, 10);
  MessageCall received = MessageOf(0, /*is_send=*/false, 40, DataType::kInt8);
  const Watch::Operation sending(network.watch(0), std::span(&sent, 1));
  const Watch::Operation receiving(network.watch(1), std::span(&received, 1));
  const Status reason = network.watch(1).OnForeignChunk(0, received.signature.Tag(), 7);
  ExpectWords(reason, {"mismatched message", "rank 0 sends 10 elements of float32",
                       "rank 1, which receives 40 of int8"});
  EXPECT_EQ(network.watch(0).StopReason().message(), reason.message());
}

TEST(WatchTest, AForeignTagShowsTheCollectiveInWhichTheRanksParted) {
  Network network(2);
  Launch(network.watch(0), AllReduceOf(10));
  Launch(network.watch(1), AllReduceOf(11));
  OpSignature same = AllReduceOf(12), as_well = AllReduceOf(12);
  const Watch::Operation here(network.watch(0), same, nullptr);
  const Watch::Operation there(network.watch(1), as_well, nullptr);
  ExpectWords(network.watch(1).OnForeignChunk(0, 1, 2), {"number 1", "count 10", "count 11"});
}

TEST(WatchTest, ARankThatHasGoneFurtherThanOneThatLeftIsStopped) {
  Network network(3);
  for (const int rank : {0, 1, 2}) Launch(network.watch(rank), AllReduceOf(10));
  LaunchMessage(network.watch(1), MessageOf(0, /*is_send=*/true, 1));
  int told = 0;
  network.watch(0).SetLeaveHook([&] { ++told; });
  network.watch(2).SendLeaveNotice(/*finished=*/true);
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(network.watch(0).CheckLeaveNotices().ok());
  EXPECT_FALSE(network.watch(0).CutShort());

  network.watch(1).SendLeaveNotice(/*finished=*/false);
  EXPECT_EQ(told, 2);
  EXPECT_TRUE(network.watch(0).CheckLeaveNotices().ok());
  ASSERT_TRUE(network.watch(0).CutShort());
  ExpectWords(*network.watch(0).CutShort(), {"rank 1 has ended", "in the middle"});

  for (int i = 0; i < 2; ++i) LaunchMessage(network.watch(0), MessageOf(1, /*is_send=*/false, 1));
  ExpectWords(network.watch(0).CheckLeaveNotices(),
              {"rank 1 has ended its communicator and sent 1 of 2 messages that rank 0 expects"});
  Launch(network.watch(0), AllReduceOf(20));
  ExpectWords(network.watch(0).CheckLeaveNotices(), {"after collective number 1", "count 20"});
}

// The hook ends the waits of operations, which ask the watch for the reason.
TEST(WatchTest, TheStopHookMayAskTheWatch) {
  std::vector<std::string> heard;
  Network network(2, 0, Watch::kExplainBrokenNs, [&heard](Watch& watch) {
    watch.SetStopHook([&] { heard.emplace_back(watch.StopReason().message()); });
  });
  network.watch(0).Stop(InternalError("it broke"), /*tell=*/true);
  EXPECT_EQ(heard, (std::vector<std::string>{"it broke", "it broke"}));
}

TEST(WatchTest, AReasonOfAnotherRankIsMadePrintable) {
  Network network(2);
  network.watch(0).Stop(InternalError("a line\nand \x1b[2J"), /*tell=*/true);
  EXPECT_EQ(network.watch(0).StopReason().message(), "a line\nand \x1b[2J");
  EXPECT_EQ(network.watch(1).StopReason().message(), "a line?and ?[2J");
}

TEST(WatchTest, ALossEndsJointCallsAlsoAfterAStop) {
  Network network(2);
  Watch& watch = network.watch(0);
  watch.Stop(InternalError("revoked"), /*tell=*/false);
  std::atomic<bool> before = false, after = false;
  const Watch::JointCall call(watch, before);
  EXPECT_FALSE(before);
  const LostRank lost = {1, "killed"};
  network.events(0).ranks_lost(std::span(&lost, 1));
  EXPECT_TRUE(before);
  ExpectWords(call.reason(), {"rank 1 was lost: killed"});
  EXPECT_EQ(watch.LostRanks(), std::vector<int>{1});
  ExpectWords(watch.StopReason(), {"revoked"});
  const Watch::JointCall late(watch, after);
  EXPECT_TRUE(after);
  EXPECT_EQ(late.reason().message(), call.reason().message());
}

// Rank 1 asks on a thread of its own, which handles rank 0's events, as the loop's thread would.
TEST(WatchTest, OperationsGoOnWhileOthersAskAboutThem) {
  Network network(2);
  for (uint64_t i = 1; i < RecentCollectives::kKept; ++i) {
    Launch(network.watch(1), AllReduceOf(i));
    LaunchMessage(network.watch(1), MessageOf(0, /*is_send=*/true, i));
  }
  std::atomic<bool> done = false;
  std::thread asking([&] {
    do {
      network.watch(1).CompareRecent(0);
    } while (!done);
  });
  for (uint64_t i = 1; i < 2000; ++i) {
    Launch(network.watch(0), AllReduceOf(i));
    LaunchMessage(network.watch(0), MessageOf(1, /*is_send=*/false, i));
    const Watch::Step step(network.watch(0), "in a step");
  }
  done = true;
  asking.join();
  for (const int rank : {0, 1})
    EXPECT_FALSE(network.watch(rank).stopped()) << network.watch(rank).StopReason().message();
}

TEST(WatchTest, AJointCallThatOneRankGivesUpEndsOnAllRanks) {
  Network network(3);
  std::array<std::atomic<bool>, 3> flags = {};
  {
    const Watch::JointCall giver(network.watch(0), flags[0]);
    const Watch::JointCall waiting(network.watch(1), flags[1]);
    giver.GiveUp(RemoteError("rank 0 gave up"));
    EXPECT_TRUE(flags[1]);
    ExpectWords(waiting.reason(), {"rank 0 gave up"});
    // This rank comes to the call later.
    const Watch::JointCall late(network.watch(2), flags[2]);
    EXPECT_TRUE(flags[2]);
    ExpectWords(late.reason(), {"rank 0 gave up"});
  }
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(network.watch(rank).stopped());
    std::atomic<bool> flag = false;
    const Watch::JointCall next(network.watch(rank), flag);
    EXPECT_FALSE(flag);
  }
}

TEST(WatchTest, AWaitForTheReasonOfAJointCallEndsWithTheReasonOrAtTheDeadline) {
  Network network(2);
  std::array<std::atomic<bool>, 2> flags = {};
  const Watch::JointCall giver(network.watch(0), flags[0]);
  const Watch::JointCall waiting(network.watch(1), flags[1]);
  EXPECT_TRUE(waiting.AwaitReason(Deadline::After(1'000'000)).ok());
  std::thread thread(
      [&] { ExpectWords(waiting.AwaitReason(Deadline::Never()), {"rank 0 gave up"}); });
  giver.GiveUp(RemoteError("rank 0 gave up"));
  thread.join();
}

// Each rank sees a pair that cannot talk before it hears what the others see.
TEST(WatchTest, BrokenConnectionsOfAMiddleRankExcludeTheSameRankForAll) {
  Network network(3, /*timeout_ns=*/0, /*explain_ns=*/1'000'000);
  network.Hold();
  std::vector<std::thread> threads;
  for (const auto& [rank, peer] : {std::pair(0, 1), std::pair(1, 0), std::pair(2, 1)})
    threads.emplace_back([&network, rank = rank, peer = peer] {
      const Status reason = network.watch(rank).FirstReason(RemoteError("it broke"), peer);
      ExpectWords(reason, {"one of them has to go", "it broke"});
    });
  while (network.HeldSenders() < 3) std::this_thread::yield();
  network.Deliver();
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(network.watch(rank).stopped());
    EXPECT_EQ(network.watch(rank).LostRanks(), std::vector<int>{1}) << "on rank " << rank;
  }
}

// Has rank 0 of `network` look for the reason of a broken connection to `peer` on a thread of its
// own, which must sleep until `act` brings the reason. Returns the reason found by rank 0.
Status ReasonAfter(Network& network, std::optional<int> peer, const std::function<void()>& act) {
  Status reason;
  std::atomic<pid_t> thread = 0;
  std::thread waiting([&] {
    thread = testing::ThisThread();
    reason = network.watch(0).FirstReason(RemoteError("it broke"), peer);
  });
  while (thread == 0) std::this_thread::yield();
  EXPECT_TRUE(testing::StaysAsleep(thread, /*quiet_ms=*/30));
  const Deadline soon = Deadline::AfterSeconds(30);
  act();
  waiting.join();
  EXPECT_FALSE(soon.Passed()) << "the wait went on until its deadline";
  return reason;
}

TEST(WatchTest, AWaitForTheReasonSleepsUntilTheCommunicatorStops) {
  for (const std::optional<int> peer : {std::optional<int>(), std::optional<int>(1)}) {
    Network network(2, /*timeout_ns=*/0, /*explain_ns=*/120'000'000'000);
    const Status reason = ReasonAfter(
        network, peer, [&] { network.watch(1).Stop(InternalError("a fault"), /*tell=*/true); });
    EXPECT_EQ(reason.message(), "a fault");
  }
}

TEST(WatchTest, AWaitForTheReasonSleepsUntilThePeerLeaves) {
  Network network(2, /*timeout_ns=*/0, /*explain_ns=*/120'000'000'000);
  const Status reason = ReasonAfter(network, 1, [&] { network.events(0).peer_left(1); });
  EXPECT_EQ(reason.message(), "it broke");
  EXPECT_FALSE(network.watch(0).stopped());
}

// Nothing from rank 1 arrives, so rank 0 decides when the time for an answer is over.
TEST(WatchTest, ABrokenConnectionToASilentRankEndsInItsLoss) {
  Network network(2, /*timeout_ns=*/0, /*explain_ns=*/1'000'000);
  network.Hold();
  const Deadline soon = Deadline::AfterSeconds(20);
  ExpectWords(network.watch(0).FirstReason(RemoteError("it broke"), 1), {"rank 1 was lost"});
  EXPECT_FALSE(soon.Passed()) << "the wait went on until its deadline";
  EXPECT_EQ(network.watch(0).LostRanks(), std::vector<int>{1});
}

TEST(WatchTest, BytesThatAreNoMessageAreIgnored) {
  Network network(2);
  for (int kind = 0; kind < 256; ++kind) {
    for (const size_t size : {1, 2, 4, 20, 57, 100}) {
      // A failure of an unknown code is a failure nevertheless.
      if (kind == 1 && size > 1) continue;
      Bytes bytes(size, std::byte{0xff});
      bytes[0] = static_cast<std::byte>(kind);
      network.events(0).control(1, bytes);
    }
  }
  EXPECT_FALSE(network.watch(0).stopped()) << network.watch(0).StopReason().message();
}

// Links at distance 2^k, as the bootstrap makes them.
TEST(WatchLetters, ReachEveryRankOverTheLinksThatExist) {
  constexpr int kRanks = 13;
  WaitBoard board;
  Network network(kRanks, 0, Watch::kExplainBrokenNs, nullptr, &board);
  network.SetLinked([](int a, int b) {
    const int apart = (b - a + kRanks) % kRanks;
    return std::has_single_bit(static_cast<unsigned>(apart)) ||
           std::has_single_bit(static_cast<unsigned>(kRanks - apart));
  });
  std::vector<std::pair<int, int>> arrived;
  board.SetLetterHandler([&](uint64_t, int from, std::span<const std::byte> letter) {
    arrived.emplace_back(from, std::to_integer<int>(letter[0]));
  });
  std::vector<std::pair<int, int>> sent;
  for (int from = 0; from < kRanks; ++from) {
    for (int to = 0; to < kRanks; ++to) {
      if (to == from) continue;
      const std::array letter = {static_cast<std::byte>(to)};
      EXPECT_TRUE(network.watch(from).SendLetter(to, letter)) << from << " to " << to;
      sent.emplace_back(from, to);
    }
  }
  EXPECT_EQ(arrived, sent);
  // Nobody leads there.
  network.SetLinked([](int, int) { return false; });
  EXPECT_FALSE(network.watch(0).SendLetter(1, std::array{std::byte{1}}));
}

}  // namespace
}  // namespace tutti
