// Connections that break under way go on, with every message once and in order.

#include <gtest/gtest.h>
#include <linux/filter.h>

#include <atomic>
#include <deque>
#include <thread>

#include "transport/net/net_contract_test.h"
#include "transport/net/socket/cable.h"
#include "transport/net/socket/fuzz_targets.h"

namespace tutti {
namespace {

struct Message {
  NetRequest* request = nullptr;
  std::vector<std::byte> bytes;
};

// A stream of messages of these sizes; with tags, in groups of `group` that are sent backwards.
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

void Fill(std::vector<std::byte>& bytes, size_t number) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number * 7 + i + i / 255);
  }
}

void SendAll(NetSendComm& sender, const Plan& plan) {
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
      // What is done is the caller's again, and may change at once.
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

Group Post(NetRecvComm& receiver, const Plan& plan, size_t first) {
  Group group;
  std::array<NetReceive, kMaxNetGroup> receives;
  for (size_t i = 0; i < plan.GroupSize(); ++i) {
    group.buffers.emplace_back(plan.sizes[first + i]);
    receives[i] = {group.buffers[i].data(), plan.sizes[first + i], plan.Tag(first + i)};
  }
  group.request = receiver.Irecv(std::span(receives).first(plan.GroupSize())).value();
  return group;
}

void ExpectGroup(const Group& group, const Plan& plan, size_t first) {
  for (size_t i = 0; i < plan.GroupSize(); ++i) {
    ASSERT_EQ(group.request->received[i].op_tag, first + i);
    ASSERT_EQ(group.request->received[i].bytes, plan.sizes[first + i]);
    std::vector<std::byte> expected(plan.sizes[first + i]);
    Fill(expected, first + i);
    ASSERT_TRUE(group.buffers[i] == expected) << "message " << first + i;
  }
}

// Sends in a thread of its own and checks what comes; `between` is called by the receiving thread
// before each message, or group.
template <class Between>
void Stream(CabledLink& link, const Plan& plan, Between between) {
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

const NetFactory kOneSocket = SocketFactory("OneSocket", 1, 1);
const NetFactory kStriped = SocketFactory("Striped", 1, 3);
const NetFactory kHelped = SocketFactory("Helped", 2, 2);

TEST(SocketResumeTest, ResetsLoseNothingAndRepeatNothing) {
  for (const NetFactory& factory : {kOneSocket, kStriped, kHelped}) {
    for (const size_t group : {0, 1, 5}) {
      SCOPED_TRACE(fmt::format("{}, groups of {}", factory.name, group));
      CabledLink link(factory);
      const int sockets = link.cable->accepted();
      int cuts = 0;
      Stream(link, {net_contract::MixedSizes(21, 200), group}, [&](size_t i) {
        if (i % 20 != 10) return;
        link.cable->Cut();
        ++cuts;
      });
      EXPECT_GE(link.cable->accepted(), sockets * (1 + cuts / 2));
    }
  }
}

// The reset of any one socket makes the connection anew.
TEST(SocketResumeTest, OneOfTheSocketsIsReset) {
  for (const NetFactory& factory : {kStriped, kHelped}) {
    SCOPED_TRACE(factory.name);
    CabledLink link(factory);
    int cuts = 0;
    Stream(link, {net_contract::MixedSizes(22, 150)}, [&](size_t i) {
      if (i % 10 == 5) link.cable->Cut(cuts++ % 4);
    });
  }
}

TEST(SocketResumeTest, GoesOnAfterALinkThatWasDownForAWhile) {
  for (const NetFactory& factory : {kOneSocket, kHelped}) {
    CabledLink link(factory);
    std::thread cable;
    Stream(link, {net_contract::MixedSizes(4, 60)}, [&](size_t i) {
      if (i != 30) return;
      link.cable->Cut();
      link.cable->Hold(true);
      cable = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
        link.cable->Hold(false);
      });
    });
    cable.join();
  }
}

// Drives one end until it fails.
template <class Step>
Status FailureOf(Step step) {
  Status status;
  const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
  while (status.ok() && !deadline.Passed()) status = step();
  return status;
}

TEST(SocketResumeTest, FailsAtOnceWhenTheOtherEndIsGone) {
  for (const NetFactory& factory : {kOneSocket, kHelped}) {
    for (const bool sender_goes : {false, true}) {
      CabledLink link(factory);
      Stream(link, {{100, 100'000}}, [](size_t) {});
      std::vector<std::byte> bytes(200'000);
      const int64_t before_ns = NowNs();
      Status status;
      if (sender_goes) {
        ASSERT_TRUE(fuzz::ReceiveOne(*link.receiver, bytes.data(), 1).ok());
        link.sender.reset();
        status = FailureOf([&] { return link.receiver->Progress().status(); });
      } else {
        link.receiver.reset();
        link.cable->Cut();
        status = FailureOf([&] {
          TUTTI_TRY(link.sender->Isend({bytes.data(), bytes.size()}).status());
          return link.sender->Progress().status();
        });
      }
      EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
      EXPECT_LT(NowNs() - before_ns, kResumeWithinNs / 2);
    }
  }
}

// Every damage is found, and what was damaged is sent again.
TEST(SocketResumeTest, DamageOnTheWayIsSentAgain) {
  for (const Sealing sealing : {Sealing::kChecksum, Sealing::kEncryption}) {
    for (const auto& [threads, sockets] : {std::pair(1, 1), {1, 3}, {2, 2}}) {
      SCOPED_TRACE(fmt::format("{} threads, {} sockets", threads, sockets));
      CabledLink link(SocketFactory("Sealed", threads, sockets, "127.0.0.1:0", sealing));
      link.cable->Damage(30);
      Stream(link, {net_contract::MixedSizes(23, 150)}, [&](size_t i) {
        // The last acknowledgement is to come through.
        if (i == 140) link.cable->Damage(0);
      });
      EXPECT_GT(link.cable->damaged(), 0);
    }
  }
}

TEST(SocketResumeTest, EndlessDamageEndsWithASentence) {
  CabledLink link(SocketFactory("Sealed", 1, 1, "127.0.0.1:0", Sealing::kChecksum));
  link.cable->Damage(1);
  std::vector<std::byte> bytes(100'000);
  std::vector<std::byte> place(bytes.size());
  ASSERT_TRUE(link.sender->Isend({bytes.data(), bytes.size()}).ok());
  ASSERT_TRUE(fuzz::ReceiveOne(*link.receiver, place.data(), place.size()).ok());
  Status sending;
  const Status status = FailureOf([&] {
    if (sending.ok()) sending = link.sender->Progress().status();
    return link.receiver->Progress().status();
  });
  EXPECT_NE(status.message().find("was damaged on its way 33 times"), std::string::npos)
      << status.message() << "; " << sending.message();
}

// Makes a connection deaf at both ends: the kernel drops what comes and acknowledges nothing, as
// where a firewall or a switch swallows packets.
void Swallow(const CabledLink& link) {
  std::vector<int> fds;
  link.sender->AppendFds(fds);
  link.receiver->AppendFds(fds);
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop};
  for (const int fd : fds) {
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
  }
}

NetFactory Impatient(int sockets, int64_t resume_timeout_s = 10) {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = sockets;
  settings.host_timeout_s = 2;
  settings.resume_timeout_s = resume_timeout_s;
  return {"Impatient", [=] { return std::make_unique<SocketNetPair>(settings, "127.0.0.1:0"); }};
}

TEST(SocketResumeTest, ASilentPathIsLeftForANewOne) {
  for (const int sockets : {1, 3}) {
    CabledLink link(Impatient(sockets));
    const int before = link.cable->accepted();
    Stream(link, {net_contract::MixedSizes(24, 60)}, [&](size_t i) {
      if (i == 30) Swallow(link);
    });
    EXPECT_GT(link.cable->accepted(), before);
  }
}

// Its host acknowledges what comes, or at least that it has no room for it.
TEST(SocketResumeTest, AStoppedReceiverIsNotSilent) {
  CabledLink link(Impatient(1));
  const int before = link.cable->accepted();
  const std::vector<size_t> sizes(60, size_t{1} << 20);
  Stream(link, {sizes}, [](size_t i) {
    if (i == 30) std::this_thread::sleep_for(std::chrono::seconds(5));
  });
  EXPECT_EQ(link.cable->accepted(), before);
}

TEST(SocketResumeTest, AReceiverThatOnlyWaitsNoticesThatThePathIsSilent) {
  CabledLink link(Impatient(1, 1));
  Stream(link, {{100, 100}}, [](size_t) {});
  std::byte byte{};
  ASSERT_TRUE(fuzz::ReceiveOne(*link.receiver, &byte, 1).ok());
  Swallow(link);
  const Status status = FailureOf([&] { return link.receiver->Progress().status(); });
  EXPECT_EQ(status.message(),
            "the peer's host acknowledges nothing any more (ETIMEDOUT), and the connection could "
            "not be made again within 1 s (TUTTI_RESUME_TIMEOUT_S)");
}

NetFactory WithTimeout(int64_t seconds) {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = 1;
  settings.resume_timeout_s = seconds;
  return {"Timeout", [=] { return std::make_unique<SocketNetPair>(settings, "127.0.0.1:0"); }};
}

TEST(SocketResumeTest, TheSettingSaysHowLongItTries) {
  for (const int64_t seconds : {0, 1}) {
    CabledLink link(WithTimeout(seconds));
    Stream(link, {{100, 100}}, [](size_t) {});
    std::byte byte{};
    ASSERT_TRUE(fuzz::ReceiveOne(*link.receiver, &byte, 1).ok());
    link.cable->Cut();
    link.cable->Hold(true);
    const Status status = FailureOf([&] { return link.receiver->Progress().status(); });
    const std::string expected =
        seconds == 0 ? "Connection reset by peer (ECONNRESET)"
                     : "Connection reset by peer (ECONNRESET), and the connection could not be "
                       "made again within 1 s (TUTTI_RESUME_TIMEOUT_S)";
    EXPECT_EQ(status.message(), expected);
    link.cable->Hold(false);
  }
}

}  // namespace
}  // namespace tutti
