#pragma once

// The contract that every network keeps (net.h). A network's test supplies a factory of pairs and
// gets all cases:
//
//   class SocketNetContract : public NetContract {};
//   TEST_P(SocketNetContract, Holds) { Run(); }
//   INSTANTIATE_TEST_SUITE_P(Sockets, SocketNetContract, NetContractCasesFor({"Sockets", MakePair}),
//                            NetContractCaseName);

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <tuple>

#include "testing/threads.h"
#include "transport/testing/net_link.h"

namespace tutti {
namespace net_contract {

// A message under way, at either end.
struct Flying {
  NetRequest* request = nullptr;
  NetBuffer buffer;
  uint64_t number = 0;
};

inline std::vector<size_t> MixedSizes(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<size_t> sizes(count);
  for (size_t& bytes : sizes) {
    const unsigned kind = random() % 8;
    bytes = kind == 0 ? 0 : kind < 3 ? random() % ((1 << 20) + 1) : random() % 3000;
  }
  return sizes;
}

inline void ExpectMessage(const NetReceived& received, NetBuffer& buffer, size_t bytes,
                          uint64_t number, bool carries_op_tag) {
  EXPECT_EQ(received.bytes, bytes) << "message " << number;
  if (received.bytes != bytes) return;
  EXPECT_EQ(buffer.FirstWrong(number, bytes), bytes) << "message " << number;
  EXPECT_EQ(received.op_tag, carries_op_tag ? static_cast<uint32_t>(number * 77) : 0u);
}

// Sends messages of these sizes, as many at once as the connection takes, and checks the received
// messages.
inline void Transfer(NetLink& link, const std::vector<size_t>& sizes) {
  std::deque<Flying> sending;
  std::deque<Flying> receiving;
  size_t sent = 0;
  size_t posted = 0;
  size_t received = 0;
  link.Drive([&] {
    if (posted < sizes.size()) {
      Flying next = {nullptr, link.ReceiveBuffer(sizes[posted] + posted % 3), posted};
      next.request = link.Receive(next.buffer);
      if (next.request) {
        receiving.push_back(std::move(next));
        ++posted;
      }
    }
    if (sent < sizes.size()) {
      Flying next = {nullptr, link.SendBuffer(sizes[sent]), sent};
      next.buffer.Fill(sent);
      next.request = link.Send(next.buffer, 0, static_cast<uint32_t>(sent * 77));
      if (next.request) {
        sending.push_back(std::move(next));
        ++sent;
      }
    }
    while (!sending.empty() && link.Sent(sending.front().request)) sending.pop_front();
    while (!receiving.empty() && link.Received(receiving.front().request)) {
      Flying& first = receiving.front();
      ExpectMessage(first.request->received[0], first.buffer, sizes[received], received,
                    link.receiver->CarriesOpTag());
      receiving.pop_front();
      ++received;
    }
    return (received == sizes.size() && sending.empty()) || ::testing::Test::HasFailure();
  });
  EXPECT_EQ(received, sizes.size());
}

inline void KeepsOrderOverMixedSizes(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  Transfer(link, MixedSizes(7, 150));
}

inline void CarriesTheLongestMessage(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  RepeatedMemory from(factory.longest_bytes);
  RepeatedMemory to(factory.longest_bytes);
  for (size_t i = 0; i < RepeatedMemory::kPageBytes; ++i) {
    from.data()[i] = static_cast<std::byte>(i * 7 + i / 253);
  }
  std::unique_ptr<NetMemory> from_memory;
  std::unique_ptr<NetMemory> to_memory;
  if (link.from.needs_registration) {
    from_memory = link.sender->Register({from.data(), from.size()}).value();
    to_memory = link.receiver->Register({to.data(), to.size()}).value();
  }
  const NetReceive receive = {to.data(), to.size(), 0, to_memory.get()};
  NetRequest* const receiving = *link.receiver->Irecv({&receive, 1});
  ASSERT_NE(receiving, nullptr);
  NetRequest* sending = nullptr;
  ASSERT_TRUE(link.Drive([&] {
    return (sending = link.Send({from.data(), from.size(), 0, 5, from_memory.get()})) != nullptr;
  }));
  bool sent = false;
  bool received = false;
  ASSERT_TRUE(link.Drive([&] {
    sent = sent || link.Sent(sending);
    received = received || link.Received(receiving);
    return sent && received;
  }));
  EXPECT_EQ(receiving->received[0].bytes, to.size());
  EXPECT_EQ(std::memcmp(from.data(), to.data(), RepeatedMemory::kPageBytes), 0);
}

// As many requests as the device allows, begun at once, tested from the last to the first.
inline void TestsRequestsInAnyOrder(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  const uint64_t count =
      std::min<uint64_t>({link.from.max_requests, link.to.max_requests, uint64_t{256}});
  ASSERT_GE(count, kNetWindow);
  for (int round = 0; round < 3; ++round) {
    std::deque<Flying> receiving;
    std::deque<Flying> sending;
    for (uint64_t i = 0; i < count; ++i) {
      receiving.push_back({nullptr, link.ReceiveBuffer(600), i});
      receiving.back().request = link.Receive(receiving.back().buffer);
      ASSERT_NE(receiving.back().request, nullptr) << "receive " << i << " of " << count;
    }
    for (uint64_t i = 0; i < count; ++i) {
      sending.push_back({nullptr, link.SendBuffer(500 + i % 100), i});
      sending.back().buffer.Fill(i);
      sending.back().request =
          link.SendSoon(sending.back().buffer, 0, static_cast<uint32_t>(i * 77));
      ASSERT_NE(sending.back().request, nullptr) << "send " << i << " of " << count;
    }
    for (; !receiving.empty(); receiving.pop_back()) {
      Flying& last = receiving.back();
      ASSERT_TRUE(link.Drive([&] { return link.Received(last.request); }));
      ExpectMessage(last.request->received[0], last.buffer, 500 + last.number % 100, last.number,
                    link.receiver->CarriesOpTag());
    }
    for (; !sending.empty(); sending.pop_back()) {
      ASSERT_TRUE(link.Drive([&] { return link.Sent(sending.back().request); }));
    }
  }
}

inline void HoldsASenderThatIsFirst(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  NetBuffer from = link.SendBuffer(70'000);
  from.Fill(1);
  NetRequest* sending = nullptr;
  for (int i = 0; i < 100 && !sending; ++i) {
    sending = link.Send(from);
    ASSERT_TRUE(link.sender->Progress().ok());
  }
  NetBuffer to = link.ReceiveBuffer(80'000);
  NetRequest* const receiving = link.Receive(to);
  ASSERT_NE(receiving, nullptr);
  if (!sending) sending = link.SendSoon(from);
  ASSERT_NE(sending, nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
  // A helper thread may still use the buffer.
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  EXPECT_EQ(receiving->received[0].bytes, 70'000u);
  EXPECT_EQ(to.FirstWrong(1, 70'000), 70'000u);
}

// A sender whose messages nobody receives is held back, and goes on afterwards.
inline void HoldsASenderThatIsAhead(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  std::deque<Flying> sending;
  for (int refused = 0; refused < 200;) {
    ASSERT_LE(sending.size(), std::max(link.from.max_requests, link.to.max_requests));
    Flying next = {nullptr, link.SendBuffer(100), sending.size()};
    next.buffer.Fill(next.number);
    next.request = link.Send(next.buffer);
    if (next.request) {
      sending.push_back(std::move(next));
    } else {
      ++refused;
    }
    ASSERT_TRUE(link.sender->Progress().ok());
    ASSERT_TRUE(link.receiver->Progress().ok());
  }
  const size_t ahead = sending.size();
  for (uint64_t i = 0; i < ahead + 3; ++i) {
    NetBuffer to = link.ReceiveBuffer(100);
    NetRequest* const receiving = link.Receive(to);
    ASSERT_NE(receiving, nullptr);
    if (i >= ahead) {
      Flying next = {nullptr, link.SendBuffer(100), i};
      next.buffer.Fill(i);
      ASSERT_TRUE(link.Drive([&] {
        while (!sending.empty() && link.Sent(sending.front().request)) sending.pop_front();
        return (next.request = link.Send(next.buffer)) != nullptr;
      }));
      sending.push_back(std::move(next));
    }
    ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
    EXPECT_EQ(to.FirstWrong(i, 100), 100u) << i;
  }
}

// Groups of every size, with the tags of each in a random order. The buffers of a group have
// different lengths, and some messages are empty.
inline void FillsGroupsByTag(const NetFactory& factory) {
  const auto pair = factory.make();
  const int max_group = NetLink(*pair).to.max_group;
  for (int size = 1; size <= max_group; ++size) {
    SCOPED_TRACE(size);
    NetLink link(*pair);
    std::mt19937 random(static_cast<unsigned>(size));
    for (int round = 0; round < 6; ++round) {
      std::vector<NetReceive> group;
      std::deque<NetBuffer> to;
      std::vector<uint32_t> tags;
      const auto bytes_for = [&](uint32_t tag) { return tag % 4 * 9000 + tag % 5 * 100; };
      for (int i = 0; i < size; ++i) {
        tags.push_back(static_cast<uint32_t>(100 + round + i));
        to.push_back(link.ReceiveBuffer(bytes_for(tags.back()) + 1));
        group.push_back({to.back().data(), to.back().size(), tags.back(), to.back().memory()});
      }
      NetRequest* const receiving = *link.receiver->Irecv(group);
      ASSERT_NE(receiving, nullptr);
      std::vector<uint32_t> order = tags;
      std::shuffle(order.begin(), order.end(), random);
      std::deque<Flying> sending;
      for (const uint32_t tag : order) {
        sending.push_back({nullptr, link.SendBuffer(bytes_for(tag)), tag});
        sending.back().buffer.Fill(tag);
        sending.back().request = link.SendSoon(sending.back().buffer, tag, tag * 77);
        ASSERT_NE(sending.back().request, nullptr);
      }
      ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
      for (size_t i = 0; i < to.size(); ++i) {
        ExpectMessage(receiving->received[i], to[i], bytes_for(tags[i]), tags[i],
                      link.receiver->CarriesOpTag());
      }
      for (const Flying& each : sending) {
        ASSERT_TRUE(link.Drive([&] { return link.Sent(each.request); }));
      }
    }
  }
}

// A group takes no message of a later group: a send whose tag the group in turn no longer wants
// must wait.
inline void FillsGroupsInTurn(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  if (link.to.max_group < 2) GTEST_SKIP() << "this network receives one message at a time";
  std::deque<NetBuffer> to;
  std::array<NetRequest*, 2> receiving = {};
  for (NetRequest*& request : receiving) {
    std::vector<NetReceive> group;
    for (const uint32_t tag : {1u, 2u}) {
      to.push_back(link.ReceiveBuffer(1000));
      group.push_back({to.back().data(), to.back().size(), tag, to.back().memory()});
    }
    request = *link.receiver->Irecv(group);
    ASSERT_NE(request, nullptr);
  }
  std::deque<NetBuffer> from;
  for (uint64_t i = 0; i < 4; ++i) {
    from.push_back(link.SendBuffer(1000));
    from.back().Fill(i);
  }
  std::array<NetRequest*, 4> sending = {};
  ASSERT_NE(sending[0] = link.SendSoon(from[0], 1), nullptr);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(link.Send(from[2], 1), nullptr) << "the first group has its message with tag 1";
    ASSERT_TRUE(link.sender->Progress().ok());
    ASSERT_TRUE(link.receiver->Progress().ok());
  }
  ASSERT_NE(sending[1] = link.SendSoon(from[1], 2), nullptr);
  ASSERT_NE(sending[3] = link.SendSoon(from[3], 2), nullptr);
  ASSERT_NE(sending[2] = link.SendSoon(from[2], 1), nullptr);
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving[1]); }));
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving[0]); }));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(to[i].FirstWrong(i, 1000), 1000u) << i;
}

inline void RefusesWhatIsTooLong(const NetFactory& factory) {
  const auto pair = factory.make();
  for (const size_t bytes : {size_t{17}, size_t{100'000}}) {
    NetLink link(*pair);
    NetBuffer to = link.ReceiveBuffer(32);
    const NetReceive half = {to.data(), 16, 0, to.memory()};
    ASSERT_NE(*link.receiver->Irecv({&half, 1}), nullptr);
    NetBuffer from = link.SendBuffer(bytes);
    from.Fill(1);
    // Either end may see the failure first.
    Status status;
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    for (bool begun = false; status.ok() && !deadline.Passed();) {
      if (!begun) {
        const Result<NetRequest*> request =
            link.sender->Isend({from.data(), from.size(), 0, 0, from.memory()});
        begun = request.ok() && *request;
        status = request.status();
      }
      if (status.ok()) status = link.sender->Progress().status();
      if (status.ok()) status = link.receiver->Progress().status();
    }
    EXPECT_FALSE(status.ok()) << bytes;
    EXPECT_FALSE(status.message().empty());
    for (size_t i = 16; i < 32; ++i) EXPECT_EQ(to.data()[i], std::byte{0}) << "byte " << i;
    EXPECT_FALSE(link.AwaitSendFailure(from).ok());
    EXPECT_FALSE(NetLink::AwaitFailure(*link.receiver).ok());
  }
}

// One end is shut down from another thread while both are busy. Both ends notice the shutdown and
// stay broken.
inline void ShutsDownUnderWay(const NetFactory& factory) {
  const auto pair = factory.make();
  for (const bool sender_shuts_down : {false, true}) {
    NetLink link(*pair);
    std::deque<NetBuffer> to;
    std::deque<NetBuffer> from;
    for (uint64_t i = 0; i < kNetWindow; ++i) {
      to.push_back(link.ReceiveBuffer(300'000));
      ASSERT_NE(link.Receive(to.back()), nullptr);
    }
    for (int i = 0; i < 2; ++i) {
      from.push_back(link.SendBuffer(300'000));
      ASSERT_NE(link.SendSoon(from.back()), nullptr);
    }
    std::thread other([&] {
      if (sender_shuts_down) {
        link.sender->Shutdown();
      } else {
        link.receiver->Shutdown();
      }
    });
    const Status receiving = NetLink::AwaitFailure(*link.receiver);
    const Status sending = link.AwaitSendFailure(from[0]);
    other.join();
    EXPECT_FALSE(receiving.ok());
    EXPECT_FALSE(sending.ok());
    EXPECT_FALSE(link.receiver->Progress().ok());
    const NetReceive again = {to[0].data(), to[0].size(), 0, to[0].memory()};
    EXPECT_FALSE(link.receiver->Irecv({&again, 1}).ok());
    EXPECT_FALSE(link.sender->Isend({from[0].data(), 1, 0, 0, from[0].memory()}).ok());
  }
}

inline void NoticesThatThePeerIsGone(const NetFactory& factory) {
  const auto pair = factory.make();
  {
    NetLink link(*pair);
    NetBuffer to = link.ReceiveBuffer(1000);
    ASSERT_NE(link.Receive(to), nullptr);
    link.sender.reset();
    EXPECT_EQ(NetLink::AwaitFailure(*link.receiver).code(), Code::kRemoteError);
  }
  {
    NetLink link(*pair);
    link.receiver.reset();
    link.listener.reset();
    NetBuffer from = link.SendBuffer(100'000);
    const Status status = link.AwaitSendFailure(from);
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
  }
}

inline void OneBrokenConnectionHarmsNoOther(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink first(*pair);
  NetLink second(*pair);
  Transfer(first, {10, 100'000});
  first.receiver->Shutdown();
  EXPECT_FALSE(NetLink::AwaitFailure(*first.receiver).ok());
  Transfer(second, MixedSizes(3, 20));
}

inline void RegistersMemory(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  std::vector<std::byte> bytes(1 << 20);
  const NetRegion whole = {bytes.data(), bytes.size()};
  const NetRegion part = {bytes.data() + 4096, 100'000};
  auto first = link.sender->Register(whole);
  ASSERT_TRUE(first.ok()) << first.status().message();
  auto second = link.sender->Register(part);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second.value()->region().address, part.address);
  EXPECT_EQ(second.value()->region().bytes, part.bytes);
  // The part outlives the whole.
  first.value().reset();
  for (size_t i = 0; i < part.bytes; ++i) part.address[i] = static_cast<std::byte>(i);
  NetBuffer to = link.ReceiveBuffer(5000);
  NetRequest* const receiving = link.Receive(to);
  NetRequest* sending = nullptr;
  ASSERT_TRUE(link.Drive([&] {
    return (sending = link.Send({part.address + 7, 5000, 0, 0, second.value().get()})) != nullptr;
  }));
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
  ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
  EXPECT_EQ(std::memcmp(to.data(), part.address + 7, 5000), 0);
  if (!link.from.takes_gpu_memory) {
    NetRegion gpu = whole;
    gpu.kind = NetMemoryKind::kGpu;
    EXPECT_EQ(link.sender->Register(gpu).status().code(), Code::kInvalidUsage);
  }
}

// A receiver that sleeps on the descriptors of PrepareToWait, after Progress has done all possible
// work, wakes up for a message.
inline void WakesASleepingReceiver(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  NetBuffer to = link.ReceiveBuffer(100);
  NetBuffer from = link.SendBuffer(100);
  std::vector<NetWait> waits;
  const bool polled = link.receiver->PrepareToWait(waits) == NetIdle::kPoll;
  for (int round = 0; round < 10; ++round) {
    NetRequest* const receiving = link.Receive(to);
    ASSERT_NE(receiving, nullptr);
    std::atomic<pid_t> thread = 0;
    std::atomic<bool> came = false;
    std::thread sleeper([&] {
      thread.store(testing::ThisThread());
      const Deadline deadline = Deadline::AfterSeconds(BoundS());
      do {
        ASSERT_TRUE(link.receiver->Progress().ok());
      } while (!link.Received(receiving) && SleepOn(*link.receiver, deadline));
      came.store(true);
    });
    while (thread.load() == 0) std::this_thread::yield();
    if (!polled) {
      EXPECT_TRUE(testing::AwaitAsleep(thread.load()));
    }
    EXPECT_FALSE(came.load());
    NetRequest* sending = nullptr;
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    while (!sending && !deadline.Passed()) {
      sending = link.Send(from);
      ASSERT_TRUE(link.sender->Progress().ok());
    }
    while (!link.Sent(sending) && !deadline.Passed()) {
      ASSERT_TRUE(link.sender->Progress().ok());
    }
    sleeper.join();
    EXPECT_TRUE(came.load());
    EXPECT_EQ(receiving->received[0].bytes, 100u);
  }
}

// Two threads, each of which sleeps whenever its own end cannot go on: neither sleeps for ever.
inline void SleepingEndsWakeEachOther(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  constexpr uint64_t kMessages = 400;
  const auto bytes_of = [](uint64_t i) { return i % 50 == 0 ? size_t{400'000} : i % 90; };
  std::thread sending([&] {
    NetBuffer from = link.SendBuffer(400'000);
    from.Fill(0);
    const Deadline deadline = Deadline::AfterSeconds(BoundS());
    for (uint64_t i = 0; i < kMessages; ++i) {
      NetRequest* request = nullptr;
      while (!(request = link.Send({from.data(), bytes_of(i), 0, 0, from.memory()}))) {
        ASSERT_TRUE(SleepOn(*link.sender, deadline)) << "message " << i << " was never granted";
        ASSERT_TRUE(link.sender->Progress().ok());
      }
      for (;;) {
        ASSERT_TRUE(link.sender->Progress().ok());
        if (link.Sent(request)) break;
        ASSERT_TRUE(SleepOn(*link.sender, deadline)) << "message " << i << " was never sent";
      }
    }
  });
  NetBuffer to = link.ReceiveBuffer(400'000);
  const Deadline deadline = Deadline::AfterSeconds(BoundS());
  for (uint64_t i = 0; i < kMessages && !::testing::Test::HasFailure(); ++i) {
    NetRequest* const request = link.Receive(to);
    ASSERT_NE(request, nullptr);
    for (;;) {
      const Result<bool> moved = link.receiver->Progress();
      EXPECT_TRUE(moved.ok()) << moved.status().message();
      if (!moved.ok() || link.Received(request)) break;
      const bool woke = SleepOn(*link.receiver, deadline);
      EXPECT_TRUE(woke) << "message " << i << " never came";
      if (!woke) break;
    }
    EXPECT_EQ(request->received[0].bytes, bytes_of(i));
    EXPECT_EQ(to.FirstWrong(0, bytes_of(i)), bytes_of(i));
  }
  sending.join();
}

// Drained messages arrive although the sender is gone by then.
inline void DeliversWhatWasDrained(const NetFactory& factory) {
  const auto pair = factory.make();
  NetLink link(*pair);
  NetBuffer to = link.ReceiveBuffer(2000);
  NetRequest* const receiving = link.Receive(to);
  {
    NetBuffer from = link.SendBuffer(2000);
    from.Fill(9);
    NetRequest* const sending = link.SendSoon(from);
    ASSERT_NE(sending, nullptr);
    ASSERT_TRUE(link.Drive([&] { return link.Sent(sending); }));
    ASSERT_TRUE(link.Drive([&] { return link.sender->Drained(); }));
  }
  link.sender.reset();
  ASSERT_TRUE(link.Drive([&] { return link.Received(receiving); }));
  EXPECT_EQ(to.FirstWrong(9, 2000), 2000u);
}

struct Case {
  const char* name;
  void (*run)(const NetFactory&);
};

inline std::vector<Case> Cases() {
  return {{"KeepsOrderOverMixedSizes", KeepsOrderOverMixedSizes},
          {"CarriesTheLongestMessage", CarriesTheLongestMessage},
          {"TestsRequestsInAnyOrder", TestsRequestsInAnyOrder},
          {"HoldsASenderThatIsFirst", HoldsASenderThatIsFirst},
          {"HoldsASenderThatIsAhead", HoldsASenderThatIsAhead},
          {"FillsGroupsByTag", FillsGroupsByTag},
          {"FillsGroupsInTurn", FillsGroupsInTurn},
          {"RefusesWhatIsTooLong", RefusesWhatIsTooLong},
          {"ShutsDownUnderWay", ShutsDownUnderWay},
          {"NoticesThatThePeerIsGone", NoticesThatThePeerIsGone},
          {"OneBrokenConnectionHarmsNoOther", OneBrokenConnectionHarmsNoOther},
          {"RegistersMemory", RegistersMemory},
          {"WakesASleepingReceiver", WakesASleepingReceiver},
          {"SleepingEndsWakeEachOther", SleepingEndsWakeEachOther},
          {"DeliversWhatWasDrained", DeliversWhatWasDrained}};
}

}  // namespace net_contract

using NetContractParam = std::tuple<NetFactory, net_contract::Case>;

class NetContract : public ::testing::TestWithParam<NetContractParam> {
 protected:
  void Run() { std::get<1>(GetParam()).run(std::get<0>(GetParam())); }
};

inline auto NetContractCasesFor(NetFactory factory) {
  return ::testing::Combine(::testing::Values(std::move(factory)),
                            ::testing::ValuesIn(net_contract::Cases()));
}

inline std::string NetContractCaseName(const ::testing::TestParamInfo<NetContractParam>& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
}

}  // namespace tutti
