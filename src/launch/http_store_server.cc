#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "launch/http_store.h"
#include "sys/accept_limit.h"

namespace tutti::launch {
namespace {

// A rank sends its request at once; a later request is not served.
constexpr int64_t kRequestNs = 10'000'000'000;
// Room of a value in the map beside the bytes of key and value.
constexpr size_t kValueOverheadBytes = 192;
// Connections accepted in one event: a flood leaves the loop time for other connections.
constexpr int kAcceptsAtOnce = 64;
// Pauses before accepting again: where the bound is reached, and where the process has no further
// descriptor. Without the pause the readable listener would keep the loop turning.
constexpr int64_t kLookAgainNs = 5'000'000;
constexpr int64_t kShortageNs = 100'000'000;

}  // namespace

// Holds the store's values and connections, all of which live on the loop's thread.
class HttpStoreServer::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(EventLoop& loop)
      : loop_(loop), places_(std::min(kMaxConnections, loop.accept_limit().limit())) {}

  Status Listen(UniqueFd fd) {
    listener_ = std::move(fd);
    return loop_.AddFd(listener_.get(), EPOLLIN, [weak = weak_from_this()](uint32_t) {
      if (const auto self = weak.lock()) self->AcceptSome();
    });
  }

  void Close() {
    loop_.CancelTimer(pause_);
    if (listener_.valid()) loop_.RemoveFd(listener_.get());
    listener_.Reset();
    while (!connections_.empty()) Drop(connections_.begin()->first);
  }

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
    UniqueFd fd;
    std::string in;
    std::string out;
    size_t sent = 0;
    EventLoop::TimerId timer = 0;
    AcceptLimit::Number place = 0;
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

  void AcceptSome() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      if (!places_.Admits(kGraceNs)) return Pause(kLookAgainNs);
      Result<UniqueFd> fd = Accept(listener_.get(), nullptr);
      if (!fd.ok()) {
        if (places_.FirstHad(kGraceNs) && places_.CloseFirst()) continue;
        return Pause(kShortageNs);
      }
      if (!fd->valid()) return;
      Admit(std::move(fd).value());
    }
  }

  void Pause(int64_t pause_ns) {
    if (!loop_.ModifyFd(listener_.get(), 0).ok()) return;
    pause_ = loop_.AddTimer(pause_ns, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (!self || !self->listener_.valid()) return;
      [[maybe_unused]] const Status status = self->loop_.ModifyFd(self->listener_.get(), EPOLLIN);
    });
  }

  void Admit(UniqueFd fd) {
    const uint64_t number = next_connection_++;
    const auto weak = weak_from_this();
    const auto drop = [weak, number] {
      if (const auto self = weak.lock()) self->Drop(number);
    };
    const auto on_ready = [weak, number](uint32_t) {
      if (const auto self = weak.lock()) self->OnReady(number);
    };
    if (!loop_.AddFd(fd.get(), EPOLLIN, on_ready).ok()) return;
    Connection& connection = connections_[number];
    connection.fd = std::move(fd);
    connection.timer = loop_.AddTimer(kRequestNs, drop);
    connection.place = places_.Enter(drop);
  }

  void Drop(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    places_.Leave(found->second.place);
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
  UniqueFd listener_;
  std::map<std::pair<std::string, std::string>, std::string> values_;
  size_t total_bytes_ = 0;  // SizeOf of all values
  AcceptLimit places_;
  EventLoop::TimerId pause_ = 0;
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

size_t HttpStoreServer::connections() const {
  size_t connections = 0;
  loop_->RunSync([&] { connections = state_->connections(); });
  return connections;
}

}  // namespace tutti::launch
