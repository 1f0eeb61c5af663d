#include <sys/epoll.h>

#include <map>
#include <utility>

#include "base/log.h"
#include "elastic/store.h"
#include "elastic/store_wire.h"
#include "sys/event_loop.h"

namespace tutti::elastic {

// Everything lives on the loop's thread.
class StoreServer::State : public std::enable_shared_from_this<State> {
 public:
  State(EventLoop& loop, OnSet on_set) : loop_(loop), on_set_(std::move(on_set)) {}

  Status Listen(UniqueFd fd, const Key& key) {
    auto take = [weak = weak_from_this()](SealedSocket connection, const Hello& hello,
                                          const SocketAddress&) {
      const auto self = weak.lock();
      if (self && hello.purpose == Purpose::kElastic) self->Admit(std::move(connection));
    };
    TUTTI_ASSIGN(acceptor_, AuthAcceptor::Create(loop_, std::move(fd), key, "the elastic store",
                                                 std::move(take)));
    return Status::Ok();
  }

  void Close() {
    acceptor_.reset();
    while (!connections_.empty()) Drop(connections_.begin()->first);
  }

  uint64_t Set(const std::string& key, std::string value) {
    Entry& entry = entries_[key];
    if (entry.version == 0) stored_ += key.size();
    stored_ += value.size() - entry.value.size();
    entry = {++last_version_, std::move(value)};
    const auto [begin, end] = waiting_.equal_range(key);
    std::vector<uint64_t> awake;
    for (auto it = begin; it != end; ++it) awake.push_back(it->second);
    for (const uint64_t number : awake) {
      Connection& connection = *connections_.at(number);
      if (entry.version > connection.newer_than) {
        StopWaiting(number, connection);
        Send(number, {Outcome::kDone, entry.version, entry.value});
      }
    }
    return entry.version;
  }
  void Erase(const std::string& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    stored_ -= key.size() + found->second.value.size();
    entries_.erase(found);
  }
  Entry Get(const std::string& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? Entry{} : found->second;
  }

 private:
  struct Connection {
    SealedSocket socket;
    Bytes in;
    Bytes out;
    size_t sent = 0;
    // The connection's get waits.
    bool waits = false;
    std::string key;
    uint64_t newer_than = 0;
    EventLoop::TimerId timer = 0;
  };

  void Admit(SealedSocket socket) {
    if (connections_.size() >= kMaxStoreConnections) {
      TUTTI_WARN("the elastic store has {} connections and takes no more", kMaxStoreConnections);
      return;
    }
    const uint64_t number = next_connection_++;
    auto connection = std::make_unique<Connection>();
    connection->socket = std::move(socket);
    const int descriptor = connection->socket.fd();
    connections_[number] = std::move(connection);
    const Status added =
        loop_.AddFd(descriptor, EPOLLIN, [weak = weak_from_this(), number](uint32_t) {
          if (const auto self = weak.lock()) self->OnReady(number);
        });
    if (!added.ok()) connections_.erase(number);
  }

  void Drop(uint64_t number) {
    const auto found = connections_.find(number);
    StopWaiting(number, *found->second);
    loop_.RemoveFd(found->second->socket.fd());
    incoming_ -= found->second->in.size();
    connections_.erase(found);
  }

  // Takes the connection out of waiting_, where a later set of the key would look for it.
  void StopWaiting(uint64_t number, Connection& connection) {
    if (!connection.waits) return;
    connection.waits = false;
    loop_.CancelTimer(connection.timer);
    const auto [begin, end] = waiting_.equal_range(connection.key);
    for (auto it = begin; it != end; ++it) {
      if (it->second == number) {
        waiting_.erase(it);
        return;
      }
    }
  }

  void OnReady(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    const Status status = Advance(number, *found->second);
    if (!status.ok()) {
      if (status.code() != Code::kInProgress) {
        TUTTI_INFO(kLogBootstrap, "the elastic store drops a connection: {}", status.message());
      }
      Drop(number);
    }
  }

  // Code kInProgress for a connection that ended in good order.
  Status Advance(uint64_t number, Connection& connection) {
    TUTTI_TRY(Flush(connection));
    TUTTI_ASSIGN(const int64_t got, connection.socket.TryRecv(connection.in));
    if (got == kEndOfStream) return Status(Code::kInProgress, "closed");
    incoming_ += static_cast<size_t>(got);
    if (incoming_ > kMaxStoreBytes)
      return RemoteError("unfinished requests of {} bytes in all", incoming_);
    return TakeRequest(number, connection);
  }

  // A request may arrive in pieces; an incomplete request waits in `in`.
  Status TakeRequest(uint64_t number, Connection& connection) {
    if (connection.in.size() < 4) return Status::Ok();
    const uint32_t size = WireReader(connection.in).U32();
    if (size > kMaxMessageBytes) return RemoteError("a request of {} bytes", size);
    if (connection.in.size() < 4 + size) return Status::Ok();
    // A connection carries one request at a time: a request that comes before the last answer
    // breaks the rule.
    if (connection.in.size() > 4 + size || connection.waits || !connection.out.empty()) {
      return RemoteError("a request before the answer to the one before");
    }
    TUTTI_ASSIGN(const Request request, ParseRequest(std::span(connection.in).subspan(4)));
    incoming_ -= connection.in.size();
    connection.in.clear();
    Serve(number, connection, request);
    return Status::Ok();
  }

  // A set answers its sender first, and then the gets that wait for the key.
  void Serve(uint64_t number, Connection& connection, const Request& request) {
    if (request.op == Op::kSet) {
      if (entries_.size() >= kMaxKeys && !entries_.contains(request.key)) {
        return Send(number, {Outcome::kRefused, 0,
                             fmt::format("the store holds {} keys and takes no more", kMaxKeys)});
      }
      if (const size_t bytes = StoredWith(request); bytes > kMaxStoreBytes && bytes > stored_) {
        return Send(number, {Outcome::kRefused, 0,
                             fmt::format("the store holds {} bytes and takes no more than {}",
                                         stored_, kMaxStoreBytes)});
      }
      const uint64_t version = Set(request.key, request.value);
      Send(number, {Outcome::kDone, version, ""});
      on_set_(request.key, request.value);
      return;
    }
    const Entry entry = Get(request.key);
    if (entry.version > request.newer_than) {
      return Send(number, {Outcome::kDone, entry.version, entry.value});
    }
    if (request.wait_ms == 0) return Send(number, {Outcome::kNotYet, 0, ""});
    connection.waits = true;
    connection.key = request.key;
    connection.newer_than = request.newer_than;
    waiting_.emplace(request.key, number);
    connection.timer =
        loop_.AddTimer(int64_t{request.wait_ms} * 1'000'000, [weak = weak_from_this(), number] {
          if (const auto self = weak.lock()) self->GiveUp(number);
        });
  }

  // Returns the bytes that the store would hold after a set.
  size_t StoredWith(const Request& request) const {
    const auto found = entries_.find(request.key);
    const size_t before =
        found == entries_.end() ? 0 : request.key.size() + found->second.value.size();
    return stored_ - before + request.key.size() + request.value.size();
  }

  void GiveUp(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end() || !found->second->waits) return;
    StopWaiting(number, *found->second);
    Send(number, {Outcome::kNotYet, 0, ""});
  }

  void Send(uint64_t number, const Answer& answer) {
    Connection& connection = *connections_.at(number);
    connection.out = WithSize(EncodeAnswer(answer));
    connection.sent = 0;
    // A connection that broke is dropped when the loop reports the break: callers still hold it.
    if (!Flush(connection).ok()) return;
  }

  Status Flush(Connection& connection) {
    while (connection.sent < connection.out.size()) {
      TUTTI_ASSIGN(const size_t sent,
                   connection.socket.TrySend(std::span(connection.out).subspan(connection.sent)));
      if (sent == 0) return loop_.ModifyFd(connection.socket.fd(), EPOLLIN | EPOLLOUT);
      connection.sent += sent;
    }
    if (!connection.out.empty()) {
      connection.out.clear();
      return loop_.ModifyFd(connection.socket.fd(), EPOLLIN);
    }
    return Status::Ok();
  }

  EventLoop& loop_;
  const OnSet on_set_;
  std::unique_ptr<AuthAcceptor> acceptor_;
  std::map<std::string, Entry> entries_;
  size_t stored_ = 0;    // the bytes of all keys and values
  size_t incoming_ = 0;  // the bytes of requests that have come in part, of all connections
  uint64_t last_version_ = 0;
  uint64_t next_connection_ = 1;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::multimap<std::string, uint64_t> waiting_;  // key → connection
};

StoreServer::StoreServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state,
                         uint16_t port)
    : loop_(std::move(loop)), state_(std::move(state)), port_(port) {}

Result<std::unique_ptr<StoreServer>> StoreServer::Create(SocketAddress address, const Key& key,
                                                         OnSet on_set) {
  TUTTI_ASSIGN(std::unique_ptr<EventLoop> loop, EventLoop::Create("tutti-elastic"));
  TUTTI_ASSIGN(UniqueFd fd, tutti::Listen(address));
  auto state = std::make_shared<State>(*loop, std::move(on_set));
  Status status;
  loop->RunSync([&] { status = state->Listen(std::move(fd), key); });
  TUTTI_TRY(status);
  return std::unique_ptr<StoreServer>(
      new StoreServer(std::move(loop), std::move(state), address.port));
}

StoreServer::~StoreServer() {
  loop_->RunSync([this] { state_->Close(); });
}

uint16_t StoreServer::port() const { return port_; }

void StoreServer::Set(const std::string& key, std::string value) {
  loop_->RunSync([&] { state_->Set(key, std::move(value)); });
}

void StoreServer::Erase(const std::string& key) {
  loop_->RunSync([&] { state_->Erase(key); });
}

Entry StoreServer::Get(const std::string& key) const {
  Entry entry;
  loop_->RunSync([&] { entry = state_->Get(key); });
  return entry;
}

}  // namespace tutti::elastic
