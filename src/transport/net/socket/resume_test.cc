// Connections that break under way go on, with every message once and in order.

#include "transport/net/socket/resume.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "transport/testing/cable.h"
#include "transport/testing/message_stream.h"
#include "transport/testing/net_contract.h"
#include "transport/testing/socket_fuzz_targets.h"

namespace tutti {
namespace {

using message_stream::Stream;

const NetFactory kOneSocket = SocketFactory("OneSocket", 1, 1);
const NetFactory kStriped = SocketFactory("Striped", 1, 3);
const NetFactory kHelped = SocketFactory("Helped", 2, 2);

class ResetsTest : public ::testing::TestWithParam<NetFactory> {};
TEST_P(ResetsTest, LoseNothingAndRepeatNothing) {
  for (const size_t group : {0, 1, 5}) {
    SCOPED_TRACE(group);
    CabledLink link(GetParam());
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
INSTANTIATE_TEST_SUITE_P(Sockets, ResetsTest, ::testing::Values(kOneSocket, kStriped, kHelped),
                         [](const auto& each) { return each.param.name; });

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

TEST(SocketResumeTest, GoesOnAfterALinkThatWasDownForAnAttempt) {
  for (const NetFactory& factory : {kOneSocket, kHelped}) {
    CabledLink link(factory);
    std::thread cable;
    Stream(link, {net_contract::MixedSizes(4, 60)}, [&](size_t i) {
      if (i != 30) return;
      link.cable->Hold(true);
      link.cable->Cut();
      cable = std::thread([&] {
        EXPECT_TRUE(link.cable->AwaitUnserved(Deadline::AfterSeconds(net_contract::BoundS())));
        link.cable->Hold(false);
      });
    });
    cable.join();
  }
}

// A long message stays with the sender until the receiver has acknowledged it. Once its request is
// done, the receiver need not be driven again for the acknowledgement. This also holds if a helper
// thread brought the last piece after the last call of Progress.
TEST(SocketResumeTest, AReceiverWhoseRequestIsDoneHasSaidSo) {
  const std::unique_ptr<NetPair> pair = kHelped.make();
  net_contract::NetLink link(*pair);
  // The message is so long that helper threads still work when Progress returns.
  net_contract::NetBuffer from = link.SendBuffer(size_t{64} << 20);
  net_contract::NetBuffer to = link.ReceiveBuffer(from.size());
  NetRequest* const receive = link.Receive(to);
  NetRequest* const send = link.Send(from);
  ASSERT_TRUE(receive != nullptr && send != nullptr);
  const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
  const auto drive_until = [&](NetComm& end, auto ready) {
    bool is_ready = false;
    while (!is_ready && !deadline.Passed()) {
      const Result<bool> moved = end.Progress();
      ASSERT_TRUE(moved.ok()) << moved.status().message();
      is_ready = ready(*moved);
    }
    ASSERT_TRUE(is_ready);
  };
  drive_until(*link.sender, [](bool moved) { return moved; });
  drive_until(*link.receiver, [](bool moved) { return moved; });
  while (!link.receiver->Test(*receive).value() && !deadline.Passed()) std::this_thread::yield();
  drive_until(*link.sender, [&](bool) { return link.sender->Test(*send).value(); });
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
      // The end has not tried to make the connection again first.
      EXPECT_EQ(status.message().find("could not be made again"), std::string::npos)
          << status.message();
    }
  }
}

// Every damage is found, and damaged messages are sent again.
TEST(SocketResumeTest, DamageOnTheWayIsSentAgain) {
  for (const Sealing sealing : {Sealing::kChecksum, Sealing::kEncryption}) {
    for (const auto& [threads, sockets] : {std::pair(1, 1), {1, 3}, {2, 2}}) {
      SCOPED_TRACE(fmt::format("{} threads, {} sockets", threads, sockets));
      CabledLink link(SocketFactory("Sealed", threads, sockets, "127.0.0.1:0", sealing));
      link.cable->Damage(30);
      Stream(link, {net_contract::MixedSizes(23, 150)}, [&](size_t i) {
        // The last acknowledgement must come through.
        if (i == 140) link.cable->Damage(0);
      });
      EXPECT_GT(link.cable->damaged(), 0);
    }
  }
}

// The receiver takes the sockets of an attempt to resume, but the sender does not, because the last
// answer of the attempt is damaged on the way. The receiver must wait for the next attempt.
TEST(SocketResumeTest, AnAttemptThatFailsAtTheSenderOnlyIsNotTheEnd) {
  CabledLink link(kOneSocket);
  Stream(link, {{100, 100}}, [](size_t) {});
  const Deadline deadline = Deadline::AfterSeconds(net_contract::BoundS());
  link.cable->DamageNextWelcome();
  link.cable->Cut();
  const int before = link.cable->damaged();
  while (link.cable->damaged() == before || link.cable->open() > 0) {
    const Result<bool> moved = link.sender->Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    ASSERT_FALSE(deadline.Passed());
  }
  const std::vector<std::byte> bytes(100, std::byte{7});
  std::vector<std::byte> place(bytes.size());
  NetRequest* const received = fuzz::ReceiveOne(*link.receiver, place.data(), 100).value();
  NetRequest* const sent = link.sender->Isend({bytes.data(), bytes.size()}).value();
  bool came = false;
  for (int turn = 0; !came || !*link.sender->Test(*sent); ++turn) {
    const Result<bool> moved = link.receiver->Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    came = came || *link.receiver->Test(*received);
    // The receiver is first to see the end of the attempt.
    if (turn >= 1000) {
      ASSERT_TRUE(link.sender->Progress().ok());
    }
    ASSERT_FALSE(deadline.Passed());
  }
  EXPECT_EQ(place, bytes);
}

// Once the first complete set has shut the old sockets down, the receiver must not take their end
// for the end of the sender while a later attempt is under way.
TEST(SocketResumeTest, ALaterAttemptDoesNotTakeTheOfferBack) {
  ResumePoint point(1);
  DataHello hello;
  hello.data_sockets = 1;
  hello.life = DataHello::kResumes;
  const auto offer = [&](uint32_t attempt, uint16_t socket) {
    hello.attempt = attempt;
    hello.socket = socket;
    EXPECT_TRUE(point.Offer(UniqueFd(::socket(AF_INET, SOCK_STREAM, 0)), hello).ok());
  };
  offer(1, 0);
  EXPECT_FALSE(point.Offered());
  offer(1, 1);
  EXPECT_TRUE(point.Offered());
  offer(2, 0);
  EXPECT_TRUE(point.Offered());
  EXPECT_FALSE(point.Step()->has_value());
  offer(2, 1);
  EXPECT_TRUE(point.Step()->has_value());
  EXPECT_FALSE(point.Offered());
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

// Makes sockets deaf: the kernel drops incoming packets and acknowledges nothing, as behind a
// firewall or a switch that swallows packets.
void Swallow(std::span<const int> fds) {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {1, &drop};
  for (const int fd : fds) {
    ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
  }
}
// Makes a connection deaf at both ends.
void Swallow(const CabledLink& link) {
  std::vector<int> fds;
  link.sender->AppendFds(fds);
  link.receiver->AppendFds(fds);
  Swallow(fds);
}

// The tests of SlowSocketResumeTest wait for time-outs, whose settings are whole seconds.
constexpr int64_t kHostTimeoutS = 2;
NetFactory Impatient(int sockets, int64_t resume_timeout_s = 10) {
  Settings settings;
  settings.socket_nthreads = 1;
  settings.nsocks_perthread = sockets;
  settings.host_timeout_s = kHostTimeoutS;
  settings.resume_timeout_s = resume_timeout_s;
  return {"Impatient",
          [=] { return std::make_unique<SocketNetPair>(settings, "127.0.0.1:0", true); }};
}

TEST(SlowSocketResumeTest, ASilentPathIsLeftForANewOne) {
  for (const int sockets : {1, 3}) {
    CabledLink link(Impatient(sockets));
    const int before = link.cable->accepted();
    Stream(link, {net_contract::MixedSizes(24, 60)}, [&](size_t i) {
      if (i == 30) Swallow(link);
    });
    EXPECT_GT(link.cable->accepted(), before);
  }
}

// The sender finds one of its sockets silent and ends all of them. The receiver learns of the end
// over the remaining sockets and waits for the sender, which does nothing else for some time.
TEST(SlowSocketResumeTest, OneSilentSocketIsNotTheEnd) {
  CabledLink link(Impatient(3));
  Stream(link, {{1'000'000}}, [](size_t) {});
  std::vector<int> fds;
  link.sender->AppendFds(fds);
  Swallow(std::span(fds).last(1));
  const std::vector<std::byte> bytes(1'000'000, std::byte{7});
  std::array<std::vector<std::byte>, 2> places;
  std::array<NetRequest*, 2> received = {};
  for (size_t i = 0; i < 2; ++i) {
    places[i].resize(bytes.size());
    received[i] = fuzz::ReceiveOne(*link.receiver, places[i].data(), bytes.size()).value();
  }
  const auto drive = [](NetComm& comm, int seconds) {
    for (const Deadline end = Deadline::AfterSeconds(seconds); !end.Passed();) {
      const Result<bool> moved = comm.Progress();
      ASSERT_TRUE(moved.ok()) << moved.status().message();
    }
  };
  NetRequest* sent = link.sender->Isend({bytes.data(), bytes.size()}).value();
  drive(*link.sender, 1);
  drive(*link.receiver, 4);
  for (size_t i = 0; i < 2; ++i) {
    if (i == 1) sent = link.sender->Isend({bytes.data(), bytes.size()}).value();
    const Status status = FailureOf([&]() -> Status {
      TUTTI_TRY(link.sender->Progress().status());
      TUTTI_TRY(link.receiver->Progress().status());
      return *link.sender->Test(*sent) && *link.receiver->Test(*received[i]) ? Timeout("done")
                                                                             : Status::Ok();
    });
    EXPECT_EQ(status.message(), "done");
    EXPECT_EQ(places[i], bytes);
  }
}

// Returns how long the kernel has had nothing to send or no room to send to; of several sockets the
// longest.
int64_t UnsentMs(std::span<const int> fds) {
  int64_t longest_ms = 0;
  for (const int fd : fds) {
    tcp_info info = {};
    socklen_t bytes = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) continue;
    longest_ms = std::max(longest_ms, int64_t{info.tcpi_last_data_sent});
  }
  return longest_ms;
}

// The host of a stopped receiver still acknowledges data, or reports a lack of room for them. The
// receiver is stopped until the sender could have taken the host for silent.
TEST(SlowSocketResumeTest, AStoppedReceiverIsNotSilent) {
  CabledLink link(Impatient(1));
  const int before = link.cable->accepted();
  std::vector<int> fds;
  link.sender->AppendFds(fds);
  const std::vector<size_t> sizes(60, size_t{1} << 20);
  Stream(link, {sizes}, [&](size_t i) {
    if (i != 30) return;
    const Deadline bound = Deadline::AfterSeconds(60);
    while (UnsentMs(fds) < 2 * kHostTimeoutS * 1000 && !bound.Passed())
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_FALSE(bound.Passed());
  });
  EXPECT_EQ(link.cable->accepted(), before);
}

TEST(SlowSocketResumeTest, AReceiverThatOnlyWaitsNoticesThatThePathIsSilent) {
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
  return {"Timeout",
          [=] { return std::make_unique<SocketNetPair>(settings, "127.0.0.1:0", true); }};
}

TEST(SlowSocketResumeTest, TheSettingSaysHowLongItTries) {
  for (const int64_t seconds : {0, 1}) {
    CabledLink link(WithTimeout(seconds));
    Stream(link, {{100, 100}}, [](size_t) {});
    std::byte byte{};
    ASSERT_TRUE(fuzz::ReceiveOne(*link.receiver, &byte, 1).ok());
    link.cable->Hold(true);
    link.cable->Cut();
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
