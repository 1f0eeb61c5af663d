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
#include <random>
#include <thread>

#include "bootstrap/testing/thread_ranks.h"
#include "sys/host.h"

namespace tutti {
namespace {

using testing::ToBytes;
using testing::ToText;

struct Ends {
  UniqueFd a;
  UniqueFd b;
};

Ends NewEnds() {
  int fds[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Steps both sides until neither moves; how each ended.
struct Outcome {
  Result<Progress> connecting;
  Result<Progress> accepting;
};
Outcome Shake(Handshake& connecting, Handshake& accepting, const Ends& ends) {
  Outcome outcome{Progress::kIdle, Progress::kIdle};
  for (int i = 0; i < 10; ++i) {
    if (outcome.accepting.ok()) outcome.accepting = accepting.Step(ends.b.get());
    if (outcome.connecting.ok()) outcome.connecting = connecting.Step(ends.a.get());
  }
  return outcome;
}

TEST(HandshakeTest, BothProveAndTheHelloArrives) {
  const Key key = RandomKey();
  const Ends ends = NewEnds();
  auto connecting = Handshake::Connecting(key, {Purpose::kData, ToBytes("hello")});
  auto accepting = Handshake::Accepting(key);
  const Outcome outcome = Shake(connecting, accepting, ends);
  ASSERT_TRUE(outcome.connecting.ok() && outcome.accepting.ok());
  EXPECT_EQ(*outcome.connecting, Progress::kDone);
  EXPECT_EQ(*outcome.accepting, Progress::kDone);
  EXPECT_EQ(accepting.hello().purpose, Purpose::kData);
  EXPECT_EQ(ToText(accepting.hello().payload), "hello");
}

TEST(HandshakeTest, AConnectorWithoutTheKeyIsRefusedAndLearnsNothing) {
  const Ends ends = NewEnds();
  auto connecting = Handshake::Connecting(RandomKey(), {Purpose::kData, {}});
  auto accepting = Handshake::Accepting(RandomKey());
  const Outcome outcome = Shake(connecting, accepting, ends);
  EXPECT_FALSE(outcome.accepting.ok());
  ASSERT_TRUE(outcome.connecting.ok());
  EXPECT_NE(*outcome.connecting, Progress::kDone);
}

TEST(HandshakeTest, AnAcceptorWithoutTheKeyIsRefused) {
  // The acceptor sends a challenge and then makes a welcome up.
  const Ends ends = NewEnds();
  auto connecting = Handshake::Connecting(RandomKey(), {Purpose::kData, {}});
  Bytes said = ToBytes("TUTTIHS1");
  said.resize(40 + 32, std::byte{9});
  ASSERT_TRUE(SendAll(ends.b.get(), said, {}).ok());
  Result<Progress> last = Progress::kIdle;
  for (int i = 0; i < 5 && last.ok(); ++i) last = connecting.Step(ends.a.get());
  EXPECT_FALSE(last.ok());
}

TEST(HandshakeTest, AnOldProofDoesNotOpenANewConnection) {
  const Key key = RandomKey();
  const Ends first = NewEnds();
  auto connecting = Handshake::Connecting(key, {Purpose::kData, {}});
  auto accepting = Handshake::Accepting(key);
  ASSERT_TRUE(accepting.Step(first.b.get()).ok());
  ASSERT_TRUE(connecting.Step(first.a.get()).ok());
  Bytes proof(320);
  ASSERT_TRUE(RecvAll(first.b.get(), proof, {Deadline::AfterSeconds(5), nullptr}).ok());

  const Ends second = NewEnds();
  auto fresh = Handshake::Accepting(key);
  ASSERT_TRUE(SendAll(second.a.get(), proof, {}).ok());
  EXPECT_FALSE(fresh.Step(second.b.get()).ok());
  // The very same bytes are right for the nonce they were made for.
  ASSERT_TRUE(SendAll(first.a.get(), proof, {}).ok());
  const auto done = accepting.Step(first.b.get());
  ASSERT_TRUE(done.ok());
  EXPECT_EQ(*done, Progress::kDone);
}

TEST(HandshakeTest, SeededGarbageNeverOpensAConnection) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 2000; ++i) {
    const Ends ends = NewEnds();
    auto side = i % 2 == 0 ? Handshake::Accepting(RandomKey())
                           : Handshake::Connecting(RandomKey(), {Purpose::kRoot, {}});
    Bytes garbage(random() % 600);
    for (std::byte& byte : garbage) byte = std::byte(random());
    if (i % 4 == 1 && garbage.size() > 8) std::memcpy(garbage.data(), "TUTTIHS1", 8);
    ASSERT_TRUE(SendAll(ends.a.get(), garbage, {}).ok());
    Result<Progress> last = Progress::kIdle;
    for (int step = 0; step < 4 && last.ok(); ++step) last = side.Step(ends.b.get());
    if (last.ok()) {
      EXPECT_NE(*last, Progress::kDone);
    }
  }
}

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
                           [&](UniqueFd fd, const Hello& hello, const SocketAddress& from) {
                             EXPECT_TRUE(fd.valid());
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

TEST(AuthAcceptorTest, AFloodOfSilentConnectionsDoesNotLockOut) {
  const auto loop = testing::NewLoop();
  SocketAddress address = *ParseSocketAddress("127.0.0.1:0");
  auto listen_fd = Listen(address);
  ASSERT_TRUE(listen_fd.ok());
  const Key key = RandomKey();
  std::atomic<int> yielded{0};
  auto acceptor =
      AuthAcceptor::Create(*loop, std::move(listen_fd).value(), key, "the test",
                           [&](UniqueFd, const Hello&, const SocketAddress&) { ++yielded; });
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
                             [&](UniqueFd, const Hello&, const SocketAddress&) { ++yielded; });
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
