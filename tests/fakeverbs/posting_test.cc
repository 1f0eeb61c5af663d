// Tests how often a connection over verbs calls its NIC, and how many completions it asks for.

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>

#include "transport/net/verbs/table.h"
#include "transport/testing/net_contract.h"
#include "verbs_net_pair.h"

namespace tutti {
namespace {

using net_contract::NetBuffer;
using net_contract::NetLink;

// What was posted since a number of calls.
struct Posts {
  int requests = 0;
  int lists = 0;
  int completions = 0;
};
Posts Count(size_t since, ibv_wr_opcode opcode) {
  Posts posts;
  const std::vector<fakeverbs::Call> calls = fakeverbs::Calls();
  for (size_t i = since; i < calls.size(); ++i) {
    const fakeverbs::Call& call = calls[i];
    if (call.name != "post_send" || call.opcode != opcode) continue;
    ++posts.requests;
    posts.lists += call.begins_list ? 1 : 0;
    posts.completions += (call.flags & IBV_SEND_SIGNALED) != 0 ? 1 : 0;
  }
  return posts;
}

class VerbsPostingTest : public ::testing::Test {
 protected:
  ~VerbsPostingTest() override {
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
  }
  // Sends `count` messages that are begun together, on buffers that are granted together.
  static void Send(NetLink& link, size_t bytes, size_t count) {
    NetBuffer to = link.ReceiveBuffer(bytes * count);
    NetBuffer from = link.SendBuffer(bytes * count);
    std::vector<NetRequest*> receiving;
    std::vector<NetRequest*> sending;
    for (size_t i = 0; i < count; ++i) {
      const NetReceive place = {to.data() + i * bytes, bytes, 0, to.memory()};
      receiving.push_back(link.receiver->Irecv({&place, 1}).value());
      ASSERT_NE(receiving.back(), nullptr);
    }
    // The sender's next call of Progress comes when it has begun all of them.
    const Deadline deadline = net_contract::Bound().deadline;
    while (sending.size() < count && !deadline.Passed()) {
      NetRequest* const begun = link.Send({from.data(), bytes, 0, 0, from.memory()});
      if (begun) sending.push_back(begun);
      ASSERT_TRUE(link.receiver->Progress().ok());
    }
    ASSERT_EQ(sending.size(), count);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_TRUE(link.Drive([&] { return link.Received(receiving[i]); }));
      ASSERT_TRUE(link.Drive([&] { return link.Sent(sending[i]); }));
    }
  }
};

TEST_F(VerbsPostingTest, WhatIsBegunTogetherIsPostedTogether) {
  VerbsNetPair pair({});
  NetLink link(pair);
  net_contract::Transfer(link, {1});
  const size_t before = fakeverbs::Calls().size();
  Send(link, 100, 64);
  const Posts messages = Count(before, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(messages.requests, 64);
  EXPECT_EQ(messages.lists, 1);
  EXPECT_EQ(messages.completions, 4) << "one in 16";
  const Posts grants = Count(before, IBV_WR_RDMA_WRITE);
  EXPECT_EQ(grants.requests, 64);
  EXPECT_EQ(grants.lists, 1);
  EXPECT_LE(grants.completions, 1);
}

TEST_F(VerbsPostingTest, LongMessagesAskForACompletionEach) {
  VerbsNetPair pair({});
  NetLink link(pair);
  net_contract::Transfer(link, {1});
  const size_t before = fakeverbs::Calls().size();
  Send(link, size_t{64} << 10, 8);
  const Posts messages = Count(before, IBV_WR_RDMA_WRITE_WITH_IMM);
  EXPECT_EQ(messages.requests, 8);
  EXPECT_EQ(messages.completions, 8);
}

// A completion stands for its own data alone where a notice tells of a message, because over iWARP
// it says no more.
TEST_F(VerbsPostingTest, AMessageWithANoticeCompletesByItself) {
  Settings settings;
  settings.ib_send_notices = true;
  VerbsNetPair pair(settings);
  NetLink link(pair);
  net_contract::Transfer(link, {1});
  for (const size_t bytes : {size_t{100}, size_t{64} << 10}) {
    const size_t before = fakeverbs::Calls().size();
    Send(link, bytes, 8);
    const Posts notices = Count(before, IBV_WR_SEND);
    EXPECT_EQ(notices.requests, 8);
    EXPECT_EQ(notices.lists, 0) << "they stand behind their messages";
    const Posts writes = Count(before, IBV_WR_RDMA_WRITE);
    EXPECT_EQ(writes.requests, 16) << "grants, and the messages";
    EXPECT_EQ(writes.completions, 8) << "the messages";
  }
}

// A device may raise the event for a completion that was polled before the queue was armed.
TEST_F(VerbsPostingTest, AnEventWithoutACompletionEndsFewSleeps) {
  VerbsNetPair pair({});
  NetLink link(pair);
  net_contract::Transfer(link, {1});
  std::vector<NetWait> waits;
  while (link.receiver->PrepareToWait(waits) != NetIdle::kWait) {
    ASSERT_TRUE(link.receiver->Progress().ok());
    waits.clear();
  }
  ASSERT_GT(fakeverbs::RaiseCompletionEvents(), 0);
  const auto wakes = [&] {
    std::vector<pollfd> entries;
    for (const NetWait& wait : waits) entries.push_back({wait.fd, POLLIN, 0});
    return poll(entries.data(), entries.size(), 0) > 0;
  };
  int sleeps = 0;
  for (; wakes() && sleeps < 100; ++sleeps) {
    ASSERT_TRUE(link.receiver->Progress().ok());
    waits.clear();
    ASSERT_EQ(link.receiver->PrepareToWait(waits), NetIdle::kWait);
  }
  EXPECT_GT(sleeps, 0);
  EXPECT_LT(sleeps, 10);
  net_contract::Transfer(link, {1, 100'000});
}

}  // namespace
}  // namespace tutti
