#include "launch/http_server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "sys/bounded_listener.h"

namespace tutti::launch {
namespace {

// A client sends its request at once; a later request is not served.
constexpr int64_t kRequestNs = 10'000'000'000;

}  // namespace

// Holds the connections, which live on the loop's thread.
class HttpServer::State {
 public:
  State(EventLoop& loop, UniqueFd listener, std::string name, Answer answer)
      : loop_(loop),
        answer_(std::move(answer)),
        places_(std::min(kMaxConnections, loop.accept_limit().limit())),
        listener_(std::make_shared<BoundedListener>(
            loop, places_, std::move(listener),
            BoundedListener::Options{
                .name = std::move(name),
                .time_ns = kRequestNs,
                .on_connection = [this](auto number, int fd,
                                        const auto&) { connections_[number].fd = fd; },
                .on_ready = [this](auto number) { OnReady(number); },
                .on_over = [this](auto number, auto) { Drop(number); }})) {}

  Status Start() { return listener_->Start(); }
  void Close() { listener_->Close(); }
  size_t connections() const { return connections_.size(); }

 private:
  struct Connection {
    int fd = -1;  // of the listener
    std::string in;
    std::shared_ptr<const std::string> out;  // null before the whole request has come
    size_t sent = 0;
  };

  void Drop(BoundedListener::Number number) {
    connections_.erase(number);
    listener_->Drop(number);
  }

  void OnReady(BoundedListener::Number number) {
    const Result<bool> done = Advance(connections_.at(number));
    if (!done.ok() || *done) Drop(number);
  }

  // Returns whether the connection is finished.
  Result<bool> Advance(Connection& connection) {
    if (connection.out == nullptr) {
      std::array<std::byte, 16384> buffer;
      TUTTI_ASSIGN(const int64_t got, TryRecv(connection.fd, buffer));
      if (got == kEndOfStream) return true;
      connection.in.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(got));
      const Result<std::optional<HttpRequest>> request = ParseHttpRequest(connection.in);
      if (request.ok() && !*request) return false;
      connection.out = request.ok()
                           ? answer_(**request)
                           : std::make_shared<const std::string>(EncodeHttpResponse({400}));
    }
    const auto rest = std::as_bytes(std::span(*connection.out)).subspan(connection.sent);
    TUTTI_ASSIGN(const size_t sent, TrySend(connection.fd, rest));
    connection.sent += sent;
    if (connection.sent == connection.out->size()) return true;
    TUTTI_TRY(loop_.ModifyFd(connection.fd, EPOLLOUT));
    return false;
  }

  EventLoop& loop_;
  const Answer answer_;
  AcceptLimit places_;
  std::map<BoundedListener::Number, Connection> connections_;
  const std::shared_ptr<BoundedListener> listener_;
};

HttpServer::HttpServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state, uint16_t port)
    : loop_(std::move(loop)), state_(std::move(state)), port_(port) {}

Result<std::unique_ptr<HttpServer>> HttpServer::Create(SocketAddress address, std::string name,
                                                       Answer answer) {
  TUTTI_ASSIGN(std::unique_ptr<EventLoop> loop, EventLoop::Create("tutti-http"));
  TUTTI_ASSIGN(UniqueFd fd, tutti::Listen(address));
  auto state = std::make_shared<State>(*loop, std::move(fd), std::move(name), std::move(answer));
  TUTTI_TRY(state->Start());
  return std::unique_ptr<HttpServer>(
      new HttpServer(std::move(loop), std::move(state), address.port));
}

HttpServer::~HttpServer() {
  loop_->RunSync([this] { state_->Close(); });
}

size_t HttpServer::connections() const {
  size_t connections = 0;
  loop_->RunSync([&] { connections = state_->connections(); });
  return connections;
}

}  // namespace tutti::launch
