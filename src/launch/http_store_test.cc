#include "launch/http_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

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
