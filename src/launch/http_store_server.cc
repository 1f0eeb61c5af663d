#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "launch/http_store.h"
#include "sys/bounded_listener.h"

namespace tutti::launch {
namespace {

// A rank sends its request at once; a later request is not served.
constexpr int64_t kRequestNs = 10'000'000'000;
// Room of a value in the map beside the bytes of key and value.
constexpr size_t kValueOverheadBytes = 192;

}  // namespace

// Holds the store's values and connections, all of which live on the loop's thread.
class HttpStoreServer::State {
 public:
  State(EventLoop& loop, UniqueFd listener)
      : loop_(loop),
        places_(std::min(kMaxConnections, loop.accept_limit().limit())),
        listener_(std::make_shared<BoundedListener>(
            loop, places_, std::move(listener),
            BoundedListener::Options{
                .name = "the store of the launcher",
                .time_ns = kRequestNs,
                .on_connection = [this](auto number, int fd,
                                        const auto&) { connections_[number].fd = fd; },
                .on_ready = [this](auto number) { OnReady(number); },
                .on_over = [this](auto number, auto) { Drop(number); }})) {}

  Status Start() { return listener_->Start(); }
  void Close() { listener_->Close(); }

  bool Put(const std::string& scope, const std::string& key, std::string value) {
    const auto found = values_.find({scope, key});
    const size_t old = found == values_.end() ? 0 : SizeOf(scope, key, found->second);
    const size_t total = total_bytes_ - old + SizeOf(scope, key, value);
    if (value.size() > kMaxHttpBodyBytes || total > kMaxTotalBytes) return false;
    values_[{scope, key}] = std::move(value);
    total_bytes_ = total;
    return true;
  }
  size_t size() const { return values_.size(); }
  size_t connections() const { return connections_.size(); }

 private:
  struct Connection {
    int fd = -1;  // of the listener
    std::string in;
    std::string out;
    size_t sent = 0;
  };

  static size_t SizeOf(const std::string& scope, const std::string& key, const std::string& value) {
    return scope.size() + key.size() + value.size() + kValueOverheadBytes;
  }

  void Erase(const std::string& scope, const std::string& key) {
    const auto found = values_.find({scope, key});
    if (found == values_.end()) return;
    total_bytes_ -= SizeOf(scope, key, found->second);
    values_.erase(found);
  }

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
    if (connection.out.empty()) {
      std::array<std::byte, 16384> buffer;
      TUTTI_ASSIGN(const int64_t got, TryRecv(connection.fd, buffer));
      if (got == kEndOfStream) return true;
      connection.in.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(got));
      const Result<std::optional<HttpRequest>> request = ParseHttpRequest(connection.in);
      if (request.ok() && !*request) return false;
      connection.out = EncodeHttpResponse(request.ok() ? Serve(**request) : HttpResponse{400, ""});
    }
    const auto rest = std::as_bytes(std::span(connection.out)).subspan(connection.sent);
    TUTTI_ASSIGN(const size_t sent, TrySend(connection.fd, rest));
    connection.sent += sent;
    if (connection.sent == connection.out.size()) return true;
    TUTTI_TRY(loop_.ModifyFd(connection.fd, EPOLLOUT));
    return false;
  }

  HttpResponse Serve(const HttpRequest& request) {
    if (request.method == "PUT") {
      return {Put(request.scope, request.key, request.body) ? 200 : 400, ""};
    }
    if (request.method == "DELETE") {
      Erase(request.scope, request.key);
      return {200, ""};
    }
    if (request.method != "GET") return {400, ""};
    const auto found = values_.find({request.scope, request.key});
    if (found == values_.end()) return {404, ""};
    return {200, found->second};
  }

  EventLoop& loop_;
  std::map<std::pair<std::string, std::string>, std::string> values_;
  size_t total_bytes_ = 0;  // SizeOf of all values
  AcceptLimit places_;
  std::map<BoundedListener::Number, Connection> connections_;
  const std::shared_ptr<BoundedListener> listener_;
};

HttpStoreServer::HttpStoreServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state,
                                 uint16_t port)
    : loop_(std::move(loop)), state_(std::move(state)), port_(port) {}

Result<std::unique_ptr<HttpStoreServer>> HttpStoreServer::Create(SocketAddress address) {
  TUTTI_ASSIGN(std::unique_ptr<EventLoop> loop, EventLoop::Create("tutti-http"));
  TUTTI_ASSIGN(UniqueFd fd, tutti::Listen(address));
  auto state = std::make_shared<State>(*loop, std::move(fd));
  TUTTI_TRY(state->Start());
  return std::unique_ptr<HttpStoreServer>(
      new HttpStoreServer(std::move(loop), std::move(state), address.port));
}

HttpStoreServer::~HttpStoreServer() {
  loop_->RunSync([this] { state_->Close(); });
}

void HttpStoreServer::Put(const std::string& scope, const std::string& key, std::string value) {
  loop_->RunSync([&] { state_->Put(scope, key, std::move(value)); });
}

size_t HttpStoreServer::size() const {
  size_t size = 0;
  loop_->RunSync([&] { size = state_->size(); });
  return size;
}

size_t HttpStoreServer::connections() const {
  size_t connections = 0;
  loop_->RunSync([&] { connections = state_->connections(); });
  return connections;
}

}  // namespace tutti::launch
