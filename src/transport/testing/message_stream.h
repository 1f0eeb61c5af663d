#pragma once

// For tests: a stream of messages over a connection that breaks meanwhile. The stream checks that
// each message comes once, whole and in order.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <deque>
#include <span>
#include <thread>
#include <vector>

#include "transport/testing/net_link.h"

namespace tutti::message_stream {

struct Message {
  NetRequest* request = nullptr;
  std::vector<std::byte> bytes;
};

// A stream of messages of these sizes; with tags, in groups of `group` messages that are sent
// backwards.
struct Plan {
  std::vector<size_t> sizes;
  size_t group = 0;

  size_t GroupSize() const { return std::max<size_t>(group, 1); }
  uint32_t Tag(size_t i) const { return group == 0 ? 0 : static_cast<uint32_t>(1 + i % group); }
  // The message that is the i-th to be sent.
  size_t Sent(size_t i) const {
    return group == 0 ? i : i / group * group + (group - 1 - i % group);
  }
};

inline void Fill(std::vector<std::byte>& bytes, size_t number) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number * 7 + i + i / 255);
  }
}

inline void SendAll(NetSendComm& sender, const Plan& plan) {
  std::deque<Message> under_way;
  size_t sent = 0;
  const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
  while ((sent < plan.sizes.size() || !under_way.empty() || !sender.Drained()) &&
         !deadline.Passed()) {
    if (sent < plan.sizes.size()) {
      const size_t number = plan.Sent(sent);
      Message next = {nullptr, std::vector<std::byte>(plan.sizes[number])};
      Fill(next.bytes, number);
      const auto begun = sender.Isend(
          {next.bytes.data(), next.bytes.size(), plan.Tag(number), static_cast<uint32_t>(number)});
      ASSERT_TRUE(begun.ok()) << begun.status().message();
      if (*begun) {
        next.request = *begun;
        under_way.push_back(std::move(next));
        ++sent;
      }
    }
    const Result<bool> moved = sender.Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    while (!under_way.empty() && *sender.Test(*under_way.front().request)) {
      // The caller may change the buffer as soon as its request is done.
      std::fill(under_way.front().bytes.begin(), under_way.front().bytes.end(), std::byte{0xee});
      under_way.pop_front();
    }
    if (!*moved) std::this_thread::yield();
  }
  EXPECT_EQ(sent, plan.sizes.size());
  EXPECT_TRUE(under_way.empty());
}

// A group of messages that is being received.
struct Group {
  NetRequest* request = nullptr;
  std::vector<std::vector<std::byte>> buffers;
};

inline Group Post(NetRecvComm& receiver, const Plan& plan, size_t first) {
  Group group;
  std::array<NetReceive, kMaxNetGroup> receives;
  for (size_t i = 0; i < plan.GroupSize(); ++i) {
    group.buffers.emplace_back(plan.sizes[first + i]);
    receives[i] = {group.buffers[i].data(), plan.sizes[first + i], plan.Tag(first + i)};
  }
  group.request = receiver.Irecv(std::span(receives).first(plan.GroupSize())).value();
  return group;
}

inline void ExpectGroup(const Group& group, const Plan& plan, size_t first) {
  for (size_t i = 0; i < plan.GroupSize(); ++i) {
    ASSERT_EQ(group.request->received[i].op_tag, first + i);
    ASSERT_EQ(group.request->received[i].bytes, plan.sizes[first + i]);
    std::vector<std::byte> expected(plan.sizes[first + i]);
    Fill(expected, first + i);
    ASSERT_TRUE(group.buffers[i] == expected) << "message " << first + i;
  }
}

// Sends in a thread of its own and checks the received messages. The receiving thread calls
// `between` before each message or group.
template <class Link, class Between>
void Stream(Link& link, const Plan& plan, Between between) {
  std::atomic<bool> all_sent = false;
  std::jthread sending([&] {
    SendAll(*link.sender, plan);
    all_sent.store(true);
  });
  const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
  const size_t step = plan.GroupSize();
  std::deque<Group> posted;
  size_t next = 0;
  for (size_t i = 0; i + step <= plan.sizes.size() && !::testing::Test::HasFailure(); i += step) {
    between(i);
    for (; next + step <= plan.sizes.size() && posted.size() < kNetWindow; next += step) {
      posted.push_back(Post(*link.receiver, plan, next));
    }
    bool came = false;
    while (!came && !deadline.Passed()) {
      const Result<bool> moved = link.receiver->Progress();
      EXPECT_TRUE(moved.ok()) << moved.status().message();
      if (!moved.ok()) break;
      came = *link.receiver->Test(*posted.front().request);
      if (!*moved) std::this_thread::yield();
    }
    ASSERT_TRUE(came) << "message " << i;
    ExpectGroup(posted.front(), plan, i);
    posted.pop_front();
  }
  // The last acknowledgement may have been lost with a connection.
  while (!all_sent.load() && !deadline.Passed() && !::testing::Test::HasFailure()) {
    EXPECT_TRUE(link.receiver->Progress().ok());
    std::this_thread::yield();
  }
}

}  // namespace tutti::message_stream
