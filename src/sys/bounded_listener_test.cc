#include "sys/bounded_listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"

namespace tutti {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 20s;

// Sets the soft limit of descriptors for as long as the object lives.
class Descriptors {
 public:
  explicit Descriptors(rlim_t soft) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit low = {soft, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  ~Descriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

 private:
  rlimit before_ = {};
};

// A listener on an event loop whose connections prove nothing, and the sockets that connect.
class BoundedListenerTest : public ::testing::Test {
 protected:
  // Opens a listener that admits `most` connections for `time_ns`. arrived_ gets the time at which
  // connection number `wanted` has been accepted.
  void Open(size_t most, BoundedListener::Number wanted, std::function<void()> on_shortage = {},
            int64_t time_ns = 60'000'000'000) {
    limit_.emplace(most);
    auto fd = Listen(address_);
    ASSERT_TRUE(fd.ok());
    listener_ = std::make_shared<BoundedListener>(
        *loop_, *limit_, std::move(fd).value(),
        BoundedListener::Options{
            .name = "the test",
            .time_ns = time_ns,
            .on_connection =
                [this, wanted](BoundedListener::Number number, int, const SocketAddress& from) {
                  EXPECT_TRUE(from.IsLoopback());
                  open_.insert(number);
                  if (number == wanted) arrived_.set_value(NowNs());
                },
            .on_ready = [this](BoundedListener::Number number) { OnReady(number); },
            .on_over =
                [this](BoundedListener::Number number, std::string_view) {
                  open_.erase(number);
                  listener_->Drop(number);
                },
            .on_shortage = std::move(on_shortage)});
    ASSERT_TRUE(listener_->Start().ok());
  }

  void OnReady(BoundedListener::Number number) {
    taken_ = listener_->Take(number);
    listener_->Close();
    listener_.reset();
    ready_.set_value();
  }

  void TearDown() override {
    loop_->RunSync([this] {
      if (listener_) listener_->Close();
      EXPECT_EQ(limit_->size(), 0u);
    });
  }

  static UniqueFd NewSocket() { return UniqueFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  // The connection is complete when the connection lies in the kernel's queue.
  void ConnectTo(const UniqueFd& fd) {
    sockaddr_storage storage;
    const socklen_t length = address_.ToSockaddr(storage);
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length), 0);
  }
  // Waits until the listener has closed the connection of `fd`.
  static bool AwaitEnd(const UniqueFd& fd) {
    pollfd entry{fd.get(), POLLRDHUP, 0};
    return poll(&entry, 1, 20'000) == 1;
  }

  std::unique_ptr<EventLoop> loop_ = EventLoop::Create("listener-test").value();
  SocketAddress address_ = *ParseSocketAddress("127.0.0.1:0");
  // The loop's thread has these until TearDown.
  std::optional<AcceptLimit> limit_;
  std::set<BoundedListener::Number> open_;
  std::promise<int64_t> arrived_;
  std::promise<void> ready_;
  UniqueFd taken_;
  std::shared_ptr<BoundedListener> listener_;
};

TEST_F(BoundedListenerTest, ClosesTheOldestAfterItsGrace) {
  Open(2, 3);
  const int64_t began_ns = NowNs();
  std::vector<UniqueFd> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(NewSocket());
    ConnectTo(clients.back());
  }
  auto arrived = arrived_.get_future();
  ASSERT_EQ(arrived.wait_for(kPatience), std::future_status::ready);
  EXPECT_GE(arrived.get() - began_ns, BoundedListener::kGraceNs);
  EXPECT_TRUE(AwaitEnd(clients[0]));
  loop_->RunSync([this] { EXPECT_EQ(open_, (std::set<BoundedListener::Number>{2, 3})); });
}

TEST_F(BoundedListenerTest, ClosesAConnectionAfterItsTime) {
  Open(2, 1, {}, 1'000'000);
  const UniqueFd client = NewSocket();
  ConnectTo(client);
  EXPECT_TRUE(AwaitEnd(client));
}

TEST_F(BoundedListenerTest, TellsALastingShortageAndGoesOnAfterwards) {
  std::promise<void> told;
  Open(2, 1, [&] { told.set_value(); });
  const UniqueFd client = NewSocket();
  {
    const Descriptors none(0);
    ConnectTo(client);
    EXPECT_EQ(told.get_future().wait_for(kPatience), std::future_status::ready);
  }
  EXPECT_EQ(arrived_.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(BoundedListenerTest, UsesTheReserveWithoutDescriptors) {
  Open(2, 1, [] { ADD_FAILURE() << "the reserve was not used"; });
  loop_->RunSync([this] { EXPECT_TRUE(limit_->RestoreReserve()); });
  const UniqueFd client = NewSocket();
  const Descriptors few(64);
  std::vector<UniqueFd> hoard;
  while (hoard.empty() || hoard.back().valid()) hoard.emplace_back(dup(client.get()));
  ConnectTo(client);
  EXPECT_EQ(arrived_.get_future().wait_for(kPatience), std::future_status::ready);
}

// Two connections wait, and the owner closes the listener when the first has said something.
TEST_F(BoundedListenerTest, MayBeClosedByItsCallbackAndKeepsNothing) {
  Open(2, 2);
  const UniqueFd first = NewSocket();
  const UniqueFd second = NewSocket();
  ConnectTo(first);
  ConnectTo(second);
  ASSERT_EQ(arrived_.get_future().wait_for(kPatience), std::future_status::ready);
  ASSERT_EQ(send(first.get(), "x", 1, 0), 1);
  ASSERT_EQ(ready_.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(AwaitEnd(second));
  char byte = 0;
  EXPECT_EQ(recv(taken_.get(), &byte, 1, 0), 1);
}

}  // namespace
}  // namespace tutti
