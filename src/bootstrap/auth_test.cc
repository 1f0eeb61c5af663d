#include "bootstrap/auth.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include "bootstrap/testing/thread_ranks.h"
#include "sys/host.h"

namespace tutti {
namespace {

using testing::ToBytes;
using testing::ToText;

TEST(AuthAcceptorTest, YieldsOnlyThoseWithTheKey) {
  const auto loop = testing::NewLoop();
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  auto listen_fd = Listen(address);
  ASSERT_TRUE(listen_fd.ok());
  const Key key = RandomKey();
  std::mutex mutex;
  std::vector<std::string> heard;
  auto acceptor =
      AuthAcceptor::Create(*loop, std::move(listen_fd).value(), key, "the test",
                           [&](SealedSocket socket, const Hello& hello, const SocketAddress& from) {
                             EXPECT_TRUE(socket.valid());
                             EXPECT_TRUE(from.IsLoopback());
                             const std::lock_guard lock(mutex);
                             heard.push_back(ToText(hello.payload));
                           });
  ASSERT_TRUE(acceptor.ok());
  const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
  testing::ForEach(8, [&](int i) {
    ConnectFailure failure = ConnectFailure::kOther;
    const Key own = i % 2 == 0 ? key : RandomKey();
    const auto fd =
        ConnectAuthenticated(address, own, {Purpose::kData, ToBytes("h")}, limits, &failure);
    EXPECT_EQ(fd.ok(), i % 2 == 0);
    EXPECT_EQ(failure, i % 2 == 0 ? ConnectFailure::kNone : ConnectFailure::kClosed);
  });
  EXPECT_EQ((*acceptor)->rejected(), 4u);
  acceptor->reset();
  EXPECT_EQ(heard, std::vector<std::string>(4, "h"));
  ConnectFailure failure = ConnectFailure::kNone;
  EXPECT_FALSE(ConnectAuthenticated(address, key, {Purpose::kData, {}}, limits, &failure).ok());
  EXPECT_EQ(failure, ConnectFailure::kRefused);
}

// Returns the ephemeral key in the challenge of the listener at `address`.
Bytes EphemeralOf(const SocketAddress& address) {
  const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
  const auto fd = Connect(address, limits);
  EXPECT_TRUE(fd.ok());
  Bytes challenge(72);
  EXPECT_TRUE(RecvAll(fd->get(), challenge, limits).ok());
  return Bytes(challenge.begin() + 40, challenge.end());
}

TEST(AuthAcceptorTest, StrangersShareAnEphemeralPairForAMinute) {
  testing::HeldTimersLoop loop;
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  auto listen_fd = Listen(address);
  ASSERT_TRUE(listen_fd.ok());
  const auto acceptor =
      AuthAcceptor::Create(loop, std::move(listen_fd).value(), RandomKey(), "the test",
                           [](SealedSocket, const Hello&, const SocketAddress&) {});
  ASSERT_TRUE(acceptor.ok());
  const Bytes first = EphemeralOf(address);
  EXPECT_EQ(EphemeralOf(address), first);
  loop.FireTimers();
  EXPECT_NE(EphemeralOf(address), first);
}

TEST(ConnectAuthenticatedTest, AnOlderReleaseIsNamedAndNotAskedAgain) {
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  auto listen_fd = Listen(address);
  ASSERT_TRUE(listen_fd.ok());
  const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
  std::thread old_release([&] {
    ASSERT_TRUE(WaitReady(listen_fd->get(), POLLIN, limits, "the test").ok());
    const auto fd = Accept(listen_fd->get(), nullptr);
    ASSERT_TRUE(fd.ok());
    // A challenge of the first handshake has 40 bytes, and the listener then waits.
    Bytes challenge = ToBytes("TUTTIHS1");
    challenge.resize(40, std::byte{7});
    ASSERT_TRUE(SendAll(fd->get(), challenge, limits).ok());
    std::byte end;
    EXPECT_FALSE(RecvAll(fd->get(), {&end, 1}, limits).ok());
  });
  const auto socket = ConnectPatiently(address, RandomKey(), {Purpose::kData, {}}, limits);
  ASSERT_FALSE(socket.ok());
  EXPECT_EQ(socket.status().code(), Code::kInvalidUsage);
  EXPECT_NE(socket.status().message().find("an older release of this library"),
            std::string_view::npos)
      << socket.status().message();
  old_release.join();
}

TEST(AuthAcceptorTest, AFloodOfSilentConnectionsDoesNotLockOut) {
  const auto loop = testing::NewLoop();
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  auto listen_fd = Listen(address);
  ASSERT_TRUE(listen_fd.ok());
  const Key key = RandomKey();
  std::atomic<int> yielded{0};
  auto acceptor =
      AuthAcceptor::Create(*loop, std::move(listen_fd).value(), key, "the test",
                           [&](SealedSocket, const Hello&, const SocketAddress&) { ++yielded; });
  ASSERT_TRUE(acceptor.ok());
  const WaitLimits limits = {Deadline::AfterSeconds(30), nullptr};
  std::vector<UniqueFd> silent;
  const size_t room = loop->accept_limit().limit();
  for (size_t i = 0; i < room + 50; ++i) {
    auto fd = Connect(address, limits);
    ASSERT_TRUE(fd.ok()) << i << ": " << fd.status().message();
    silent.push_back(std::move(fd).value());
  }
  EXPECT_TRUE(ConnectAuthenticated(address, key, {Purpose::kData, {}}, limits).ok());
  // The client is through once it has sent its proof; the loop hands the connection on afterwards.
  while (yielded.load() == 0 && !limits.deadline.Passed()) loop->RunSync([] {});
  EXPECT_EQ(yielded.load(), 1);
  EXPECT_GE((*acceptor)->rejected(), 50u);
}

// Processes without the key connect to two listeners of a process that may have few descriptors.
// The strangers get their share of the descriptors and no more, the limit stays, and a rank is let
// in all the same, once a stranger has had the second in which to prove itself.
TEST(SlowAuthAcceptorTest, OutsidersNeitherUseUpTheDescriptorsNorRaiseTheirLimit) {
  const testing::DescriptorLimit low(128);
  const auto loop = testing::NewLoop();
  ASSERT_EQ(loop->accept_limit().limit(), 32u);
  const Key key = RandomKey();
  std::atomic<int> yielded{0};
  std::array<SocketAddress, 2> listeners;
  std::array<std::unique_ptr<AuthAcceptor>, 2> acceptors;
  for (size_t i = 0; i < listeners.size(); ++i) {
    listeners[i] = *ParseSocketAddress("127.0.0.1:0");
    auto listen_fd = Listen(listeners[i]);
    ASSERT_TRUE(listen_fd.ok());
    auto acceptor =
        AuthAcceptor::Create(*loop, std::move(listen_fd).value(), key, "the test",
                             [&](SealedSocket, const Hello&, const SocketAddress&) { ++yielded; });
    ASSERT_TRUE(acceptor.ok());
    acceptors[i] = std::move(acceptor).value();
  }
  // The outsiders are a process of their own, with a limit of their own.
  std::array<int, 2> pipe_fds;
  ASSERT_EQ(pipe(pipe_fds.data()), 0);
  const pid_t outsiders = fork();
  ASSERT_GE(outsiders, 0);
  if (outsiders == 0) {
    if (!RaiseDescriptorLimit().ok()) _exit(1);
    for (int i = 0; i < 200; ++i) {
      sockaddr_storage storage;
      const uint32_t length = listeners[static_cast<size_t>(i) % 2].ToSockaddr(storage);
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) != 0) _exit(2);
    }
    if (write(pipe_fds[1], "x", 1) != 1) _exit(3);
    for (;;) pause();
  }
  char byte = 0;
  ASSERT_EQ(read(pipe_fds[0], &byte, 1), 1);
  const WaitLimits limits = {Deadline::AfterSeconds(30), nullptr};
  EXPECT_TRUE(ConnectAuthenticated(listeners[1], key, {Purpose::kData, {}}, limits).ok());
  while (yielded.load() == 0 && !limits.deadline.Passed()) loop->RunSync([] {});
  EXPECT_EQ(yielded.load(), 1);
  size_t waiting = 0;
  loop->RunSync([&] { waiting = loop->accept_limit().size(); });
  EXPECT_LE(waiting, 32u);
  EXPECT_GE(waiting, 30u);
  rlimit now = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &now), 0);
  EXPECT_EQ(now.rlim_cur, 128u);
  kill(outsiders, SIGKILL);
  waitpid(outsiders, nullptr, 0);
  for (const int fd : pipe_fds) close(fd);
}

// A listener without room closes the connection in the middle of the handshake.
TEST(ConnectPatientlyTest, TriesAgainAfterAHandshakeThatWasCutOff) {
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  auto listen_fd = Listen(address);
  ASSERT_TRUE(listen_fd.ok());
  const Key key = RandomKey();
  std::atomic<int> cut_off{0};
  const auto serve = [&](int cuts) {
    for (;;) {
      const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
      ASSERT_TRUE(WaitReady(listen_fd->get(), POLLIN, limits, "the test").ok());
      auto fd = Accept(listen_fd->get(), nullptr);
      ASSERT_TRUE(fd.ok());
      if (cut_off < cuts) {
        ++cut_off;
        continue;
      }
      auto handshake = Handshake::Accepting(key);
      for (auto step = handshake.Step(fd->get()); *step != Progress::kDone;) {
        ASSERT_TRUE(WaitReady(fd->get(), POLLIN, limits, "the test").ok());
        step = handshake.Step(fd->get());
        ASSERT_TRUE(step.ok());
      }
      return;
    }
  };
  std::thread acceptor([&] { serve(kConnectAttempts - 1); });
  const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
  const auto fd = ConnectPatiently(address, key, {Purpose::kData, {}}, limits);
  EXPECT_TRUE(fd.ok()) << fd.status().message();
  acceptor.join();
  EXPECT_EQ(cut_off.load(), kConnectAttempts - 1);
  // Another key is no matter of patience.
  std::thread outsider([&] {
    for (int i = 0; i < kConnectAttempts; ++i) {
      ASSERT_TRUE(WaitReady(listen_fd->get(), POLLIN, limits, "the test").ok());
      ASSERT_TRUE(Accept(listen_fd->get(), nullptr).ok());
    }
  });
  EXPECT_FALSE(ConnectPatiently(address, key, {Purpose::kData, {}}, limits).ok());
  outsider.join();
}

}  // namespace
}  // namespace tutti
