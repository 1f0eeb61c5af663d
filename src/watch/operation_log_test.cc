#include "watch/operation_log.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

std::vector<MessageCall> Messages(int count, int peer, bool is_send) {
  std::vector<MessageCall> messages(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    MessageCall& message = messages[static_cast<size_t>(i)];
    message.signature.collective = Collective::kSendRecv;
    message.signature.root = peer;
    message.signature.count = static_cast<uint64_t>(i);
    message.is_send = is_send;
  }
  return messages;
}

TEST(OperationLogTest, NumbersMessagesByPeerAndDirection) {
  observe::OperationRecord record;
  OperationLog log(3, record);
  for (const int peer : {1, 2}) {
    for (const bool is_send : {false, true}) {
      std::vector<MessageCall> messages = Messages(2 + peer, peer, is_send);
      log.BeginMessages(messages);
      EXPECT_EQ(messages.front().signature.sequence, 1u);
      EXPECT_EQ(messages.back().signature.sequence, 2u + static_cast<uint64_t>(peer));
      log.End();
    }
  }
  EXPECT_EQ(log.NumbersOfMessages(), (std::vector<uint64_t>{0, 0, 3, 3, 4, 4}));
  ASSERT_TRUE(log.FindMessage(2, /*is_send=*/true, 4));
  EXPECT_EQ(log.FindMessage(2, /*is_send=*/true, 4)->count, 3u);
  EXPECT_FALSE(log.FindMessage(1, /*is_send=*/true, 4));
}

TEST(OperationLogTest, GivesNewMessagesOnceAndForgetsTheOldest) {
  observe::OperationRecord record;
  OperationLog log(2, record);
  EXPECT_TRUE(log.TakeNewMessages().empty());
  std::vector<MessageCall> few = Messages(5, 1, true);
  log.BeginMessages(few);
  EXPECT_EQ(log.TakeNewMessages().size(), 5u);
  EXPECT_TRUE(log.TakeNewMessages().empty());
  std::vector<MessageCall> many = Messages(OperationLog::kMessages + 10, 1, true);
  log.BeginMessages(many);
  const std::vector<MessageCall> taken = log.TakeNewMessages();
  ASSERT_EQ(taken.size(), OperationLog::kMessages);
  EXPECT_EQ(taken.front().signature.sequence, 16u);
  EXPECT_EQ(taken.back().signature.sequence, OperationLog::kMessages + 15);
  EXPECT_FALSE(log.FindMessage(1, true, 15));
  EXPECT_TRUE(log.FindMessage(1, true, 16));
}

TEST(OperationLogTest, FindsReceivesOfTheGroupOnly) {
  observe::OperationRecord record;
  OperationLog log(2, record);
  std::vector<MessageCall> receives = Messages(2, 1, false);
  log.BeginMessages(receives);
  const uint32_t tag = receives[1].signature.Tag();
  EXPECT_TRUE(log.FindReceive(1, tag));
  EXPECT_FALSE(log.FindReceive(0, tag));
  EXPECT_FALSE(log.FindReceive(1, tag + 1));
  log.End();
  EXPECT_FALSE(log.FindReceive(1, tag));
}

TEST(OperationLogTest, KnowsTheCollectiveUnderWay) {
  observe::OperationRecord record;
  OperationLog log(2, record);
  EXPECT_FALSE(log.busy());
  OpSignature signature;
  signature.count = 9;
  log.BeginCollective(signature, nullptr);
  ASSERT_TRUE(log.CollectiveUnderWay());
  EXPECT_EQ(log.CollectiveUnderWay()->count, 9u);
  EXPECT_TRUE(log.busy());
  log.End();
  EXPECT_FALSE(log.CollectiveUnderWay());
  EXPECT_FALSE(log.busy());
}

}  // namespace
}  // namespace tutti
