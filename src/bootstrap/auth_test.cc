#include "bootstrap/auth.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "bootstrap/testing.h"
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
  // It sends a challenge and then makes a welcome up.
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
  ASSERT_TRUE(RaiseDescriptorLimit().ok());
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
  for (size_t i = 0; i < AuthAcceptor::kMaxPending + 50; ++i) {
    auto fd = Connect(address, limits);
    ASSERT_TRUE(fd.ok()) << i << ": " << fd.status().message();
    silent.push_back(std::move(fd).value());
  }
  EXPECT_TRUE(ConnectAuthenticated(address, key, {Purpose::kData, {}}, limits).ok());
  // The client is through once it has sent its proof; the loop hands the connection on after that.
  while (yielded.load() == 0 && !limits.deadline.Passed()) loop->RunSync([] {});
  EXPECT_EQ(yielded.load(), 1);
  EXPECT_GE((*acceptor)->rejected(), 50u);
}

}  // namespace
}  // namespace tutti
