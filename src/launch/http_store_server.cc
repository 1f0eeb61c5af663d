#include <sys/epoll.h>

#include <array>
#include <map>
#include <utility>

#include "launch/http_store.h"

namespace tutti::launch {
namespace {

// Ranks open a connection for each request and keep none. More connections at once are a flood; the
// oldest of them is then closed.
constexpr size_t kMaxConnections = 1024;
// A rank sends its request at once; a later request is not served.
constexpr int64_t kRequestNs = 10'000'000'000;
// Gloo keeps a value for each rank in each of three scopes.
constexpr size_t kMaxValues = 1 << 16;

}  // namespace

// Holds the store's values and connections, all of which live on the loop's thread.
class HttpStoreServer::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(EventLoop& loop) : loop_(loop) {}

  Status Listen(UniqueFd fd) {
    listener_ = std::move(fd);
    return loop_.AddFd(listener_.get(), EPOLLIN, [weak = weak_from_this()](uint32_t) {
      if (const auto self = weak.lock()) self->Admit();
    });
  }

  void Close() {
    if (listener_.valid()) loop_.RemoveFd(listener_.get());
    listener_.Reset();
    while (!connections_.empty()) Drop(connections_.begin()->first);
  }

  bool Put(const std::string& scope, const std::string& key, std::string value) {
    const auto name = std::pair(scope, key);
    if (values_.size() >= kMaxValues && !values_.contains(name)) return false;
    values_[name] = std::move(value);
    return true;
  }
  size_t size() const { return values_.size(); }

 private:
  struct Connection {
    UniqueFd fd;
    std::string in;
    std::string out;
    size_t sent = 0;
    EventLoop::TimerId timer = 0;
  };

  void Admit() {
    for (;;) {
      Result<UniqueFd> fd = Accept(listener_.get(), nullptr);
      if (!fd.ok() || !fd->valid()) return;
      if (connections_.size() >= kMaxConnections) Drop(connections_.begin()->first);
      const uint64_t number = next_connection_++;
      Connection& connection = connections_[number];
      connection.fd = std::move(fd).value();
      const auto on_ready = [weak = weak_from_this(), number](uint32_t) {
        if (const auto self = weak.lock()) self->OnReady(number);
      };
      if (!loop_.AddFd(connection.fd.get(), EPOLLIN, on_ready).ok()) {
        connections_.erase(number);
        continue;
      }
      connection.timer = loop_.AddTimer(kRequestNs, [weak = weak_from_this(), number] {
        if (const auto self = weak.lock()) self->Drop(number);
      });
    }
  }

  void Drop(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    loop_.CancelTimer(found->second.timer);
    loop_.RemoveFd(found->second.fd.get());
    connections_.erase(found);
  }

  void OnReady(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    const Result<bool> done = Advance(found->second);
    if (!done.ok() || *done) Drop(number);
  }

  // Returns whether the connection is finished.
  Result<bool> Advance(Connection& connection) {
    if (connection.out.empty()) {
      std::array<std::byte, 16384> buffer;
      TUTTI_ASSIGN(const int64_t got, TryRecv(connection.fd.get(), buffer));
      if (got == kEndOfStream) return true;
      connection.in.append(reinterpret_cast<const char*>(buffer.data()), static_cast<size_t>(got));
      const Result<std::optional<HttpRequest>> request = ParseHttpRequest(connection.in);
      if (request.ok() && !*request) return false;
      connection.out = EncodeHttpResponse(request.ok() ? Serve(**request) : HttpResponse{400, ""});
    }
    const auto rest = std::as_bytes(std::span(connection.out)).subspan(connection.sent);
    TUTTI_ASSIGN(const size_t sent, TrySend(connection.fd.get(), rest));
    connection.sent += sent;
    if (connection.sent == connection.out.size()) return true;
    TUTTI_TRY(loop_.ModifyFd(connection.fd.get(), EPOLLOUT));
    return false;
  }

  HttpResponse Serve(const HttpRequest& request) {
    const auto name = std::pair(request.scope, request.key);
    if (request.method == "PUT") {
      return {Put(request.scope, request.key, request.body) ? 200 : 400, ""};
    }
    if (request.method == "DELETE") {
      values_.erase(name);
      return {200, ""};
    }
    if (request.method != "GET") return {400, ""};
    const auto found = values_.find(name);
    if (found == values_.end()) return {404, ""};
    return {200, found->second};
  }

  EventLoop& loop_;
  UniqueFd listener_;
  std::map<std::pair<std::string, std::string>, std::string> values_;
  uint64_t next_connection_ = 1;
  std::map<uint64_t, Connection> connections_;
};

HttpStoreServer::HttpStoreServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state,
                                 uint16_t port)
    : loop_(std::move(loop)), state_(std::move(state)), port_(port) {}

Result<std::unique_ptr<HttpStoreServer>> HttpStoreServer::Create(SocketAddress address) {
  TUTTI_ASSIGN(std::unique_ptr<EventLoop> loop, EventLoop::Create("tutti-http"));
  TUTTI_ASSIGN(UniqueFd fd, tutti::Listen(address));
  auto state = std::make_shared<State>(*loop);
  Status status;
  loop->RunSync([&] { status = state->Listen(std::move(fd)); });
  TUTTI_TRY(status);
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

}  // namespace tutti::launch
