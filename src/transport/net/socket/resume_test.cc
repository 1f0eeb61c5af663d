// Connections that are reset under way go on, with every message once and in order.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <thread>

#include "base/mutex.h"
#include "bootstrap/wire.h"
#include "transport/net/net_contract_test.h"
#include "transport/net/socket/fuzz_targets.h"
#include "transport/net/socket/socket_net_pair.h"

namespace tutti {
namespace {

// Passes bytes between whoever connects and `target`, and resets all connections on demand.
class Relay {
 public:
  explicit Relay(const SocketAddress& target) : target_(target) {
    listen_fd_ = Listen(address_).value();
    thread_ = std::thread([this] { Run(); });
  }
  ~Relay() {
    stopping_.store(true);
    thread_.join();
  }
  const SocketAddress& address() const { return address_; }
  int accepted() const { return accepted_.load(); }
  // Resets every connection, at both ends.
  void Cut() {
    const int before = cuts_.load();
    cut_.store(true);
    while (cuts_.load() == before) std::this_thread::yield();
  }
  // While held, connections are accepted but nothing passes.
  void Hold(bool hold) { hold_.store(hold); }

 private:
  struct Pipe {
    UniqueFd near;
    UniqueFd far;
  };
  static void Reset(UniqueFd& fd) {
    const linger at_once = {1, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    fd.Reset();
  }
  // Returns false when the connection has ended.
  static bool Pass(int from, int to) {
    std::array<std::byte, 65536> bytes;
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN;
    if (got == 0) return false;
    const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
    return SendAll(to, std::span(bytes).first(static_cast<size_t>(got)), limits).ok();
  }
  void Run() {
    std::vector<Pipe> pipes;
    while (!stopping_.load()) {
      std::vector<pollfd> polls = {{listen_fd_.get(), POLLIN, 0}};
      for (const Pipe& pipe : pipes) {
        polls.push_back({pipe.near.get(), POLLIN, 0});
        polls.push_back({pipe.far.get(), POLLIN, 0});
      }
      ::poll(polls.data(), polls.size(), 1);
      if (cut_.exchange(false)) {
        for (Pipe& pipe : pipes) {
          Reset(pipe.near);
          Reset(pipe.far);
        }
        pipes.clear();
        cuts_.fetch_add(1);
        continue;
      }
      if (hold_.load()) continue;
      std::erase_if(pipes, [](const Pipe& pipe) {
        return !Pass(pipe.near.get(), pipe.far.get()) || !Pass(pipe.far.get(), pipe.near.get());
      });
      UniqueFd near = Accept(listen_fd_.get(), nullptr).value();
      if (!near.valid()) continue;
      accepted_.fetch_add(1);
      Result<UniqueFd> far = Connect(target_, {Deadline::AfterSeconds(20), nullptr});
      if (far.ok()) pipes.push_back({std::move(near), std::move(far).value()});
    }
  }

  const SocketAddress target_;
  SocketAddress address_ = ParseSocketAddress("127.0.0.1:0").value();
  UniqueFd listen_fd_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> cut_ = false;
  std::atomic<bool> hold_ = false;
  std::atomic<int> cuts_ = 0;
  std::atomic<int> accepted_ = 0;
  std::thread thread_;
};

// Two ends of a connection that goes through a relay.
struct Relayed {
  std::unique_ptr<NetPair> pair = SocketFactory("Socket", 1, 1).make();
  std::unique_ptr<NetListener> listener = pair->receiving().Listen(0).value();
  std::unique_ptr<Relay> relay;
  std::unique_ptr<NetSendComm> sender;
  std::unique_ptr<NetRecvComm> receiver;

  Relayed() {
    NetHandle handle = listener->handle();
    WireReader reader(handle);
    reader.U64();
    relay = std::make_unique<Relay>(reader.Address());
    WireWriter writer;
    writer.Address(relay->address());
    const Bytes bytes = std::move(writer).Take();
    std::memcpy(&handle[8], bytes.data(), bytes.size());
    sender = pair->sending().Connect(0, handle, net_contract::Bound()).value();
    receiver = listener->Accept(net_contract::Bound()).value();
  }
};

struct Message {
  NetRequest* request = nullptr;
  std::vector<std::byte> bytes;
};

// Sends messages of these sizes in a thread of its own and checks what comes; `between` is called
// by the receiving thread before each message.
template <class Between>
void Stream(Relayed& link, const std::vector<size_t>& sizes, Between between) {
  std::atomic<bool> all_sent = false;
  std::jthread sending([&] {
    std::deque<Message> under_way;
    size_t sent = 0;
    const Deadline deadline = Deadline::AfterSeconds(net_contract::kBoundS);
    while ((sent < sizes.size() || !under_way.empty() || !link.sender->Drained()) &&
           !deadline.Passed()) {
      if (sent < sizes.size()) {
        Message next = {nullptr, std::vector<std::byte>(sizes[sent])};
        for (size_t i = 0; i < sizes[sent]; ++i) next.bytes[i] = static_cast<std::byte>(sent + i);
        const auto begun = link.sender->Isend(
            {next.bytes.data(), next.bytes.size(), 0, static_cast<uint32_t>(sent)});
        ASSERT_TRUE(begun.ok()) << begun.status().message();
        if (*begun) {
          next.request = *begun;
          under_way.push_back(std::move(next));
          ++sent;
        }
      }
      const Result<bool> moved = link.sender->Progress();
      ASSERT_TRUE(moved.ok()) << moved.status().message();
      while (!under_way.empty() && *link.sender->Test(*under_way.front().request)) {
        // What is done is the caller's again, and may change at once.
        std::fill(under_way.front().bytes.begin(), under_way.front().bytes.end(), std::byte{0xee});
        under_way.pop_front();
      }
      if (!*moved) std::this_thread::yield();
    }
    EXPECT_EQ(sent, sizes.size());
    EXPECT_TRUE(under_way.empty());
    all_sent.store(true);
  });
  const Deadline deadline = Deadline::AfterSeconds(net_contract::kBoundS);
  std::deque<Message> posted;
  size_t next = 0;
  for (size_t i = 0; i < sizes.size() && !::testing::Test::HasFailure(); ++i) {
    between(i);
    while (next < sizes.size() && posted.size() < kNetWindow) {
      Message message = {nullptr, std::vector<std::byte>(sizes[next++])};
      message.request =
          fuzz::ReceiveOne(*link.receiver, message.bytes.data(), message.bytes.size()).value();
      posted.push_back(std::move(message));
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
    EXPECT_EQ(posted.front().request->received[0].op_tag, i);
    EXPECT_EQ(posted.front().request->received[0].bytes, sizes[i]);
    for (size_t at = 0; at < sizes[i]; ++at) {
      ASSERT_EQ(posted.front().bytes[at], static_cast<std::byte>(i + at)) << i << " at " << at;
    }
    posted.pop_front();
  }
  // The last acknowledgement may have been lost with a connection.
  while (!all_sent.load() && !deadline.Passed() && !::testing::Test::HasFailure()) {
    EXPECT_TRUE(link.receiver->Progress().ok());
    std::this_thread::yield();
  }
}

TEST(SocketResumeTest, ResetsLoseNothingAndRepeatNothing) {
  Relayed link;
  int cuts = 0;
  Stream(link, net_contract::MixedSizes(21, 300), [&](size_t i) {
    if (i % 20 != 10) return;
    link.relay->Cut();
    ++cuts;
  });
  EXPECT_GE(link.relay->accepted(), 1 + cuts);
}

TEST(SocketResumeTest, GoesOnAfterALinkThatWasDownForAWhile) {
  Relayed link;
  std::thread cable;
  Stream(link, net_contract::MixedSizes(4, 60), [&](size_t i) {
    if (i != 30) return;
    link.relay->Hold(true);
    link.relay->Cut();
    cable = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      link.relay->Hold(false);
    });
  });
  cable.join();
}

TEST(SocketResumeTest, FailsAtOnceWhenTheOtherEndIsGone) {
  for (const bool sender_goes : {false, true}) {
    Relayed link;
    Stream(link, {100, 100'000}, [](size_t) {});
    std::byte byte{};
    const int64_t before_ns = NowNs();
    Status status;
    const Deadline deadline = Deadline::AfterSeconds(net_contract::kBoundS);
    if (sender_goes) {
      ASSERT_TRUE(fuzz::ReceiveOne(*link.receiver, &byte, 1).ok());
      link.sender.reset();
      while (status.ok() && !deadline.Passed()) status = link.receiver->Progress().status();
    } else {
      link.receiver.reset();
      link.relay->Cut();
      while (status.ok() && !deadline.Passed()) {
        status = link.sender->Isend({&byte, 1}).status();
        if (status.ok()) status = link.sender->Progress().status();
      }
    }
    EXPECT_EQ(status.code(), Code::kRemoteError) << status.message();
    EXPECT_LT(NowNs() - before_ns, kResumeWithinNs / 2);
  }
}

}  // namespace
}  // namespace tutti
