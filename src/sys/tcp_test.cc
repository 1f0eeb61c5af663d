#include "sys/tcp.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "testing/threads.h"

namespace tutti {
namespace {

TEST(SocketAddress, ReadsAndWritesItsForms) {
  for (const char* text : {"1.2.3.4:5", "127.0.0.1:65535", "[::1]:7", "[fd00::12]:80"}) {
    const auto address = ParseSocketAddress(text);
    ASSERT_TRUE(address.ok()) << address.status().message();
    EXPECT_EQ(address->ToString(), text);
  }
  const auto scoped = ParseSocketAddress("[fe80::1%lo]:5");
  ASSERT_TRUE(scoped.ok()) << scoped.status().message();
  EXPECT_NE(scoped->scope_id, 0u);
  EXPECT_TRUE(scoped->IsLinkLocal());
  EXPECT_EQ(scoped->ToString(), "[fe80::1%lo]:5");
  const auto named = ParseSocketAddress("localhost:9", 4);
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_TRUE(named->IsLoopback());
  EXPECT_EQ(named->port, 9);
}

TEST(SocketAddress, SaysWhatIsWrongWithAText) {
  for (const char* text : {"", ":", "1.2.3.4", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "::1:5",
                           "[::1:5", "[1.2.3.4]:5", "[fe80::1%nosuchif]:5", "1.2.3.4:-1"}) {
    const auto address = ParseSocketAddress(text);
    EXPECT_EQ(address.status().code(), Code::kInvalidArgument) << text;
    EXPECT_NE(address.status().message().find(fmt::format("\"{}\"", text)), std::string_view::npos)
        << address.status().message();
  }
  EXPECT_FALSE(ParseSocketAddress("1.2.3.4:5", 6).ok());
  EXPECT_FALSE(ParseSocketAddress("[::1]:5", 4).ok());
  // No name server is asked for a name with an empty label.
  const Status unknown = ParseSocketAddress("no..host:5", 6).status();
  EXPECT_NE(unknown.message().find("NCCL_SOCKET_FAMILY"), std::string_view::npos)
      << unknown.message();
}

TEST(SocketAddress, SurvivesTheKernelsForm) {
  for (const char* text : {"10.20.30.40:50", "[fd00::1]:60"}) {
    const SocketAddress address = *ParseSocketAddress(text);
    sockaddr_storage storage;
    address.ToSockaddr(storage);
    EXPECT_EQ(SocketAddress::FromSockaddr(reinterpret_cast<const sockaddr*>(&storage)), address);
  }
  EXPECT_FALSE(SocketAddress::FromSockaddr(nullptr).valid());
}

struct Pair {
  UniqueFd client;
  UniqueFd server;
};

Pair NewPair(const char* where = "127.0.0.1:0") {
  SocketAddress address = *ParseSocketAddress(where);
  const auto listen_fd = Listen(address);
  EXPECT_TRUE(listen_fd.ok()) << listen_fd.status().message();
  auto client = Connect(address, {Deadline::AfterSeconds(10), nullptr});
  EXPECT_TRUE(client.ok()) << client.status().message();
  EXPECT_TRUE(WaitReady(listen_fd->get(), POLLIN, {Deadline::AfterSeconds(10), nullptr}, "x").ok());
  SocketAddress from;
  auto server = Accept(listen_fd->get(), &from);
  EXPECT_TRUE(server.ok() && server->valid());
  EXPECT_EQ(from, *LocalAddress(client->get()));
  return {std::move(client).value(), std::move(server).value()};
}

TEST(Tcp, SocketsAreNonBlockingAndCloseOnExec) {
  const Pair pair = NewPair();
  for (const int fd : {pair.client.get(), pair.server.get()}) {
    EXPECT_NE(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(Tcp, MovesMoreThanTheKernelBuffers) {
  for (const char* where : {"127.0.0.1:0", "[::1]:0"}) {
    const Pair pair = NewPair(where);
    std::vector<std::byte> sent(8 << 20);
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = std::byte(i * 13 + i / 251);
    const WaitLimits limits = {Deadline::AfterSeconds(30), nullptr};
    std::thread sender([&] { EXPECT_TRUE(SendAll(pair.client.get(), sent, limits).ok()); });
    std::vector<std::byte> received(sent.size());
    EXPECT_TRUE(RecvAll(pair.server.get(), received, limits).ok());
    sender.join();
    EXPECT_EQ(sent, received);
  }
}

std::string CongestionControlOf(int fd) {
  char name[16] = {};
  socklen_t length = sizeof(name) - 1;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  return name;
}

TEST(Tcp, ConnectionsWithinAHostAreNotPacedByBbr) {
  for (const bool same_address : {true, false}) {
    const Pair pair = NewPair(same_address ? "127.0.0.1:0" : "127.0.0.2:0");
    const int fd = pair.client.get();
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) != 0)
      GTEST_SKIP() << "this kernel has no BBR, or not for this process";
    DoNotPaceWithinHost(fd);
    EXPECT_EQ(CongestionControlOf(fd) == "bbr", !same_address);
  }
}

TEST(Tcp, WaitsEndAtDeadlineAbortAndEndOfStream) {
  Pair pair = NewPair();
  std::vector<std::byte> data(16);
  EXPECT_EQ(RecvAll(pair.server.get(), data, {Deadline::AfterSeconds(0.05), nullptr}).code(),
            Code::kTimeout);
  std::atomic<bool> abort{false};
  const pid_t waiter = testing::ThisThread();
  std::thread aborter([&, waiter] {
    EXPECT_TRUE(testing::AwaitAsleep(waiter));
    abort = true;
  });
  const Status aborted = RecvAll(pair.server.get(), data, {Deadline::Never(), &abort});
  aborter.join();
  EXPECT_NE(aborted.message().find("aborted"), std::string_view::npos);
  ASSERT_TRUE(SendAll(pair.client.get(), std::span(data).first(4), {}).ok());
  pair.client.Reset();
  EXPECT_EQ(RecvAll(pair.server.get(), data, {}).code(), Code::kRemoteError);
  EXPECT_EQ(*TryRecv(pair.server.get(), data), kEndOfStream);
}

TEST(Tcp, AWaitEndsWithTheStatusOfTheFunctionThatFollows) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd one(ends[0]), other(ends[1]);
  int calls = 0;
  const std::function<Status()> follow = [&] {
    return ++calls < 3 ? Status::Ok() : RemoteError("the awaited rank is gone");
  };
  const Status over =
      WaitReady(one.get(), POLLIN, {Deadline::Never(), nullptr, &follow}, "hearing");
  EXPECT_EQ(over.code(), Code::kRemoteError);
  EXPECT_EQ(over.message(), "the awaited rank is gone");
  EXPECT_EQ(calls, 3);
}

TEST(Tcp, SendingToAClosedEndFailsWithoutASignal) {
  Pair pair = NewPair();
  pair.server.Reset();
  const std::vector<std::byte> data(1 << 20);
  EXPECT_FALSE(SendAll(pair.client.get(), data, {Deadline::AfterSeconds(10), nullptr}).ok());
}

TEST(Tcp, TellsARefusedConnection) {
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  { const auto closed_again = Listen(address); }
  int error = 0;
  const auto fd = Connect(address, {Deadline::AfterSeconds(5), nullptr}, &error);
  EXPECT_FALSE(fd.ok());
  EXPECT_EQ(error, ECONNREFUSED);
  EXPECT_NE(fd.status().message().find(address.ToString()), std::string_view::npos);
}

// Five ports in a row without a listener.
PortRange FreeRange() {
  for (;;) {
    SocketAddress first = *ParseSocketAddress("127.0.0.1:0");
    const auto held = Listen(first, {.low = 20000, .high = 32000});
    EXPECT_TRUE(held.ok()) << held.status().message();
    bool all = true;
    for (uint16_t i = 1; i < 5; ++i) {
      SocketAddress next = first;
      next.port = static_cast<uint16_t>(first.port + i);
      all = all && Listen(next).ok();
    }
    if (all) return {.low = first.port, .high = static_cast<uint16_t>(first.port + 4)};
  }
}

TEST(Tcp, ListensInTheRangeUntilItIsFull) {
  const PortRange range = FreeRange();
  std::vector<UniqueFd> held;
  for (int i = 0; i < 5; ++i) {
    SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
    auto fd = Listen(address, range);
    ASSERT_TRUE(fd.ok()) << fd.status().message();
    EXPECT_GE(address.port, range.low);
    EXPECT_LE(address.port, range.high);
    held.push_back(std::move(fd).value());
  }
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  int error = 0;
  const auto full = Listen(address, range, &error);
  EXPECT_EQ(error, EADDRINUSE);
  EXPECT_NE(full.status().message().find(fmt::format("{} to {}", range.low, range.high)),
            std::string_view::npos)
      << full.status().message();
}

TEST(Tcp, AcceptWithoutACallerSaysSo) {
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  const auto listen_fd = Listen(address);
  const auto nobody = Accept(listen_fd->get(), nullptr);
  ASSERT_TRUE(nobody.ok());
  EXPECT_FALSE(nobody->valid());
}

TEST(Tcp, RoutesToLoopbackFromLoopback) {
  const auto source = SourceAddressFor(*ParseSocketAddress("127.0.0.1:5"));
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_TRUE(source->IsLoopback());
  EXPECT_EQ(source->port, 0);
}

}  // namespace
}  // namespace tutti
