#include "launch/http_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <string>
#include <thread>

#include "sys/bounded_listener.h"

namespace tutti::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

WaitLimits For(double seconds) { return {Deadline::AfterSeconds(seconds), nullptr}; }
constexpr double kPatienceS = 60;

std::unique_ptr<HttpStoreServer> Serve() {
  const auto address = ParseSocketAddress("127.0.0.1:0");
  auto server = HttpStoreServer::Create(*address);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(server).value();
}

// Sends bytes to the store and returns the answer.
std::string Raw(uint16_t port, std::string_view bytes) {
  auto address = ParseSocketAddress("127.0.0.1:" + std::to_string(port));
  const auto fd = Connect(*address, For(kPatienceS));
  EXPECT_TRUE(fd.ok());
  EXPECT_TRUE(SendAll(fd->get(), std::as_bytes(std::span(bytes)), For(kPatienceS)).ok());
  std::string answer;
  std::byte byte;
  while (RecvAll(fd->get(), std::span(&byte, 1), For(kPatienceS)).ok())
    answer += static_cast<char>(byte);
  return answer;
}

TEST(HttpStore, KeepsValuesByScopeAndKey) {
  const auto server = Serve();
  const HttpStoreClient store({"127.0.0.1", server->port(), ""});
  EXPECT_THAT(store.Get("global", "a", For(kPatienceS)).value(), ::testing::Eq(std::nullopt));
  const std::string bytes("\0\r\n\r\n\xff", 6);
  ASSERT_TRUE(store.Put("global", "a", bytes, For(kPatienceS)).ok());
  EXPECT_THAT(store.Get("global", "a", For(kPatienceS)).value(), Optional(bytes));
  EXPECT_THAT(store.Get("cross_0", "a", For(kPatienceS)).value(), ::testing::Eq(std::nullopt));
  const std::string large(kMaxHttpBodyBytes, 'x');
  ASSERT_TRUE(store.Put("global", "a", large, For(kPatienceS)).ok());
  EXPECT_THAT(store.Get("global", "a", For(kPatienceS)).value(), Optional(large));
  ASSERT_TRUE(store.Delete("global", "a", For(kPatienceS)).ok());
  EXPECT_EQ(server->size(), 0u);
}

TEST(HttpStore, WhoWaitsGetsTheValueWhenItIsThere) {
  const auto server = Serve();
  const HttpStoreClient store({"127.0.0.1", server->port(), ""});
  std::thread late([&] { server->Put("local_here", "3", "address"); });
  EXPECT_EQ(store.Await("local_here", "3", For(kPatienceS)).value(), "address");
  late.join();
  const auto never = store.Await("local_here", "4", For(0.05));
  EXPECT_EQ(never.status().code(), Code::kTimeout);
  EXPECT_THAT(std::string(never.status().message()), HasSubstr("/local_here/4"));
}

TEST(HttpStore, RefusesWhatIsNoRequest) {
  const auto server = Serve();
  const auto port = server->port();
  for (const char* bytes :
       {"GET / HTTP/1.1\r\n\r\n", "GET /a HTTP/1.1\r\n\r\n", "GET /a/b/c HTTP/1.1\r\n\r\n",
        "GET /a/b\r\n\r\n", "POST /a/b HTTP/1.1\r\n\r\n", "hello\r\n\r\n",
        "PUT /a/b HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        "PUT /a/b HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        "PUT /a/b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}) {
    EXPECT_THAT(Raw(port, bytes), HasSubstr("HTTP/1.1 400")) << bytes;
  }
  EXPECT_THAT(Raw(port, std::string(kMaxHttpHeadBytes, 'a')), HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(Raw(port, "PUT /a/b HTTP/1.1\r\ncontent-length: 2\r\n\r\nok"), HasSubstr("200"));
  EXPECT_THAT(Raw(port, "GET /a/b HTTP/1.1\r\n\r\n"), ::testing::EndsWith("\r\n\r\nok"));
  EXPECT_EQ(server->size(), 1u);
}

// Returns whether the store takes a value of `bytes` bytes.
bool Takes(uint16_t port, const std::string& key, size_t bytes) {
  const auto address = ParseSocketAddress("127.0.0.1:" + std::to_string(port));
  const auto fd = Connect(*address, For(kPatienceS));
  EXPECT_TRUE(fd.ok());
  const std::string request =
      EncodeHttpRequest({"PUT", "/s/" + key, std::string(bytes, 'x')}, "here");
  // The store ends the connection before it has read all of a value that is too large.
  [[maybe_unused]] const Status sent =
      SendAll(fd->get(), std::as_bytes(std::span(request)), For(kPatienceS));
  std::string answer(12, ' ');
  const bool answered =
      RecvAll(fd->get(), std::as_writable_bytes(std::span(answer)), For(kPatienceS)).ok();
  return answered && answer == "HTTP/1.1 200";
}

TEST(HttpStore, ValuesAreBounded) {
  const auto server = Serve();
  for (int i = 0; i < 300; ++i) {
    ASSERT_FALSE(Takes(server->port(), std::to_string(i), 1 << 20)) << i;
  }
  EXPECT_EQ(server->size(), 0u);
  size_t most = 0;
  while (most < 5000) {
    server->Put("s", std::to_string(most), std::string(kMaxHttpBodyBytes, 'x'));
    if (server->size() == most) break;
    ++most;
  }
  EXPECT_LE(most * kMaxHttpBodyBytes, HttpStoreServer::kMaxTotalBytes);
  EXPECT_GT((most + 8) * kMaxHttpBodyBytes, HttpStoreServer::kMaxTotalBytes);
  // A full store takes new values in the place of old ones, small values in the rest of the room,
  // and a value of any size after another has gone.
  EXPECT_FALSE(Takes(server->port(), "more", kMaxHttpBodyBytes));
  EXPECT_TRUE(Takes(server->port(), "7", kMaxHttpBodyBytes));
  EXPECT_EQ(server->size(), most);
  const HttpStoreClient store({"127.0.0.1", server->port(), ""});
  ASSERT_TRUE(store.Delete("s", "8", For(kPatienceS)).ok());
  EXPECT_TRUE(Takes(server->port(), "more", kMaxHttpBodyBytes));
}

TEST(HttpStore, EmptyValuesCountToo) {
  const auto server = Serve();
  for (int i = 0; i < 1000; ++i) server->Put("s", std::to_string(i) + std::string(7000, 'k'), "");
  const size_t before = server->size();
  EXPECT_EQ(before, 1000u);
  for (int i = 1000; i < 10000; ++i)
    server->Put("s", std::to_string(i) + std::string(7000, 'k'), "");
  EXPECT_LE(server->size() * 7000, HttpStoreServer::kMaxTotalBytes);
}

// Sockets that stay idle after they have connected.
class IdleConnections {
 public:
  explicit IdleConnections(int count) {
    for (int i = 0; i < count; ++i) {
      fds_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      EXPECT_TRUE(fds_.back().valid());
    }
  }

  void Connect(uint16_t port) {
    const auto address = ParseSocketAddress("127.0.0.1:" + std::to_string(port));
    sockaddr_storage storage;
    const socklen_t length = address->ToSockaddr(storage);
    for (const UniqueFd& fd : fds_) {
      // The connection is made in the kernel; nobody waits for the end of the attempt.
      [[maybe_unused]] const int begun =
          connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length);
    }
  }

  int last() const { return fds_.back().get(); }

  // Waits until the store has closed connection `index`.
  bool AwaitEnd(size_t index) const {
    pollfd entry{fds_[index].get(), POLLRDHUP, 0};
    return poll(&entry, 1, static_cast<int>(kPatienceS * 1000)) == 1;
  }

 private:
  std::vector<UniqueFd> fds_;
};

int64_t ProcessorNs() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

TEST(HttpStore, AnswersDuringAFloodOfConnections) {
  const auto server = Serve();
  server->Put("s", "a", "value");
  IdleConnections idle(300);
  idle.Connect(server->port());
  const HttpStoreClient store({"127.0.0.1", server->port(), ""});
  EXPECT_THAT(store.Get("s", "a", For(kPatienceS)).value(), Optional(std::string("value")));
  EXPECT_LE(server->connections(), HttpServer::kMaxConnections);
}

TEST(HttpStore, AShortageOfDescriptorsCostsNoTime) {
  const auto server = Serve();
  IdleConnections idle(300);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit low = {static_cast<rlim_t>(idle.last()) + 40, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const int64_t began = ProcessorNs();
  const int64_t began_ns = NowNs();
  idle.Connect(server->port());
  // The store has room for 40 connections, and closes the oldest after their grace time: two rounds
  // of closing have begun when connection 60 is closed.
  EXPECT_TRUE(idle.AwaitEnd(60));
  const int64_t used = ProcessorNs() - began;
  const int64_t passed = NowNs() - began_ns;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_GE(passed, BoundedListener::kGraceNs);
  EXPECT_LT(used, passed / 8);
}

TEST(Http, ReadsWhatOtherServersAnswer) {
  // Horovod's launcher uses Python's http.server.
  const std::string head = "HTTP/1.0 200 OK\r\nServer: SimpleHTTP/0.6 Python/3.11\r\n";
  auto response = ParseHttpResponse(head + "Content-Length: 3\r\n\r\nabc", false);
  ASSERT_TRUE(response.ok() && *response);
  EXPECT_EQ((*response)->status, 200);
  EXPECT_EQ((*response)->body, "abc");
  // Without a length the body goes on to the end.
  EXPECT_FALSE(ParseHttpResponse(head + "\r\nabc", false).value());
  EXPECT_EQ(ParseHttpResponse(head + "\r\nabc", true).value()->body, "abc");
  EXPECT_FALSE(ParseHttpResponse(head + "Content-Length: 4\r\n\r\nabc", true).ok());
  EXPECT_FALSE(ParseHttpResponse(head, true).ok());
  EXPECT_FALSE(ParseHttpResponse("nonsense\r\n\r\n", true).ok());
}

}  // namespace
}  // namespace tutti::launch
