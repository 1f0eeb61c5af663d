#include "launch/http_server.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "launch/http.h"

namespace tutti::launch {
namespace {

WaitLimits Limits() { return {Deadline::AfterSeconds(60), nullptr}; }

class HttpServerTest : public ::testing::Test {
 protected:
  // A server with a single answer for all paths.
  void Serve(size_t body_bytes) {
    answer_ = std::make_shared<const std::string>(
        EncodeHttpResponse({200, std::string(body_bytes, 'x'), "text/plain"}));
    auto server = HttpServer::Create(*ParseSocketAddress("127.0.0.1:0"), "test",
                                     [this](const HttpRequest& request) {
                                       ++answers_;
                                       body_bytes_ = request.body.size();
                                       return answer_;
                                     });
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  // Connects, and sends these bytes as far as the server takes them.
  UniqueFd Send(std::string_view bytes) {
    auto fd =
        Connect(*ParseSocketAddress("127.0.0.1:" + std::to_string(server_->port())), Limits());
    EXPECT_TRUE(fd.ok());
    static_cast<void>(SendAll(fd->get(), std::as_bytes(std::span(bytes)), Limits()));
    return std::move(*fd);
  }
  // Returns the first bytes of the answer, or nothing where the connection ends before.
  static std::string Read(const UniqueFd& fd, size_t size) {
    std::string text(size, '\0');
    return RecvAll(fd.get(), std::as_writable_bytes(std::span(text)), Limits()).ok() ? text : "";
  }

  std::shared_ptr<const std::string> answer_;
  int answers_ = 0;
  size_t body_bytes_ = 0;
  std::unique_ptr<HttpServer> server_;
};

// Clients that read slowly share the text, which is longer than a socket keeps.
TEST_F(HttpServerTest, KeepsALongAnswerOnceForAllConnections) {
  constexpr long kClients = 8;
  Serve(64 << 20);
  std::vector<UniqueFd> clients;
  for (long i = 0; i < kClients; ++i) {
    clients.push_back(Send("GET / HTTP/1.1\r\n\r\n"));
    EXPECT_EQ(Read(clients.back(), 15), "HTTP/1.1 200 OK");
  }
  server_->RunSync([&] { EXPECT_EQ(answer_.use_count(), 1 + kClients); });
  EXPECT_EQ(Read(clients[3], answer_->size() - 15), answer_->substr(15));
}

TEST_F(HttpServerTest, ServesOneRequestOfAConnection) {
  Serve(2);
  const UniqueFd fd = Send("GET /a HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  EXPECT_EQ(Read(fd, answer_->size()), *answer_);
  EXPECT_EQ(Read(fd, 1), "");
  EXPECT_EQ(answers_, 1);
}

TEST_F(HttpServerTest, BoundsTheHeadAndTheBodyOfARequest) {
  Serve(2);
  const auto put = [](size_t bytes) {
    return "PUT /a HTTP/1.1\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n" +
           std::string(bytes, 'y');
  };
  EXPECT_EQ(Read(Send(put(kMaxHttpBodyBytes)), 12), "HTTP/1.1 200");
  EXPECT_EQ(body_bytes_, kMaxHttpBodyBytes);
  Send(put(kMaxHttpBodyBytes + 1));
  Send("GET /" + std::string(kMaxHttpHeadBytes, 'a') + " HTTP/1.1\r\n\r\n");
  while (server_->connections() > 0) std::this_thread::yield();
  EXPECT_EQ(answers_, 1);
}

}  // namespace
}  // namespace tutti::launch
