// What a watch shows to other processes in its record.

#include <gtest/gtest.h>

#include <utility>

#include "bootstrap/testing/idle_bootstrap.h"
#include "observe/snapshot.h"
#include "watch/watch.h"

namespace tutti {
namespace {

using observe::CommunicatorSnapshot;
using observe::Phase;

class WatchRecordTest : public ::testing::Test {
 protected:
  class Node final : public testing::IdleBootstrap {
   public:
    int rank() const override { return 1; }
    int num_ranks() const override { return 4; }
  };

  WatchRecordTest() {
    observe::OwnedRecord record;
    record_ = record.operator->();
    observe::Identity identity;
    identity.rank = 1;
    identity.num_ranks = 4;
    record_->identity.Store(identity);
    watch_.emplace(node_, Watch::Options{.rank_names = {"a", "b", "c", "d"}}, std::move(record));
    watch_->Start();
  }

  CommunicatorSnapshot Seen() const { return observe::Decode(*record_).value(); }
  static OpSignature AllReduceOf(uint64_t count) {
    OpSignature signature;
    signature.count = count;
    return signature;
  }

  Node node_;
  observe::CommunicatorRecord* record_ = nullptr;
  std::optional<Watch> watch_;
};

TEST_F(WatchRecordTest, CountsCollectivesByKind) {
  for (const Collective kind : {Collective::kReduce, Collective::kScatterV, Collective::kReduce}) {
    OpSignature signature = AllReduceOf(3);
    signature.collective = kind;
    const Watch::Operation begun(*watch_, signature, nullptr);
  }
  EXPECT_EQ(Seen().begun, 3u);
  EXPECT_EQ(Seen().begun_of[static_cast<size_t>(Collective::kReduce)], 2u);
  EXPECT_EQ(Seen().begun_of[static_cast<size_t>(Collective::kScatterV)], 1u);
  EXPECT_EQ(Seen().begun_of[static_cast<size_t>(Collective::kAllReduce)], 0u);
}

TEST_F(WatchRecordTest, TellsTheCodeOfTheStop) {
  watch_->Stop(RemoteError("rank 2 is gone"), /*tell=*/false);
  EXPECT_EQ(Seen().code, static_cast<int>(Code::kRemoteError));
  EXPECT_EQ(Seen().reason, "rank 2 is gone");
}

TEST_F(WatchRecordTest, ShowsOperationsAndTheirWaits) {
  EXPECT_EQ(Seen().phase, Phase::kInOperation);
  OpSignature signature = AllReduceOf(3);
  {
    const Watch::Operation begun(*watch_, signature, nullptr);
    EXPECT_TRUE(Seen().in_collective);
    EXPECT_FALSE(Seen().wait);
    const std::array<int, 2> peers = {0, 3};
    LongWait wait;
    wait.Begin(NowNs() - 1000);
    ASSERT_TRUE(watch_->OnLongWait(peers, wait).ok());
    ASSERT_TRUE(Seen().wait);
    EXPECT_EQ(Seen().wait->ranks, (std::vector<int>{0, 3}));
    EXPECT_EQ(Seen().wait->since_ns, wait.since_ns());
    EXPECT_GE(Seen().wait->seen_ns, wait.since_ns() + 1000);
  }
  EXPECT_EQ(Seen().done(), 1u);
  EXPECT_FALSE(Seen().wait);
  std::array<MessageCall, 2> messages;
  for (MessageCall& one : messages) one.signature.collective = Collective::kSendRecv;
  for (MessageCall& one : messages) one.signature.root = 2;
  {
    const Watch::Operation begun(*watch_, messages);
    EXPECT_EQ(Seen().messages_under_way, 2u);
  }
  EXPECT_EQ(Seen().messages_done(), 2u);
}

// A rank that waits for the root of a Broadcast tells nothing about the pace of the ranks.
TEST_F(WatchRecordTest, AddsUpWaitsOfCollectivesInWhichAllWaitForAll) {
  watch_->NoteWaited(Collective::kAllReduce, 3);
  watch_->NoteWaited(Collective::kBroadcast, 5);
  watch_->NoteWaited(Collective::kBarrier, 7);
  EXPECT_EQ(Seen().waited_ns, 10);
}

TEST_F(WatchRecordTest, ShowsTheNewestStep) {
  {
    const Watch::Step outer(*watch_, "in the outer call");
    {
      const Watch::Step inner(*watch_, "in the inner call");
      EXPECT_EQ(Seen().step, "in the inner call");
    }
    EXPECT_EQ(Seen().step, "in the outer call");
    EXPECT_GT(Seen().step_since_ns, 0);
  }
  EXPECT_EQ(Seen().step, "");
}

TEST_F(WatchRecordTest, ShowsTheFirstReasonAndTheFirstRefusedCollective) {
  watch_->Stop(RemoteError("the first reason"), /*tell=*/false);
  watch_->Stop(RemoteError("another reason"), /*tell=*/false);
  EXPECT_EQ(Seen().phase, Phase::kStopped);
  EXPECT_EQ(Seen().reason, "the first reason");
  for (const uint64_t count : {5, 6, 7})
    EXPECT_EQ(watch_->Refuse(AllReduceOf(count), nullptr).message(), "the first reason");
  EXPECT_EQ(Seen().begun, 1u);
  EXPECT_FALSE(Seen().in_collective);
  ASSERT_NE(Seen().Find(1), nullptr);
  EXPECT_EQ(Seen().Find(1)->count, 5u);
}

}  // namespace
}  // namespace tutti
