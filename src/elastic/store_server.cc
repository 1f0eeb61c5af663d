#include <sys/epoll.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/log.h"
#include "elastic/store.h"
#include "elastic/store_wire.h"
#include "sys/event_loop.h"

namespace tutti::elastic {

// Everything lives on the loop's thread.
class StoreServer::State : public std::enable_shared_from_this<State> {
 public:
  State(EventLoop& loop, size_t most_held, OnSet on_set)
      : loop_(loop), most_held_(most_held), on_set_(std::move(on_set)) {}

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
    Stored& stored = entries_[key];
    Entry& entry = stored.entry;
    if (entry.version == 0) stored_ += key.size();
    stored_ += value.size() - entry.value.size();
    entry = {++last_version_, std::move(value)};
    stored.message.reset();
    const auto [begin, end] = waiting_.equal_range(key);
    std::vector<uint64_t> awake;
    for (auto it = begin; it != end; ++it) awake.push_back(it->second);
    for (const uint64_t number : awake) {
      // An answer to another connection may have dropped the connection.
      const auto found = connections_.find(number);
      if (found != connections_.end() && entry.version > found->second->newer_than) {
        StopWaiting(number, *found->second);
        Send(number, MessageOf(stored));
      }
    }
    return entry.version;
  }
  void Erase(const std::string& key) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    stored_ -= key.size() + found->second.entry.value.size();
    entries_.erase(found);
  }
  Entry Get(const std::string& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? Entry{} : found->second.entry;
  }

 private:
  // An encoded answer. All connections that wait for one version of a key share the bytes, which
  // count in held_ once.
  using Message = std::shared_ptr<const Bytes>;

  struct Stored {
    Entry entry;
    std::weak_ptr<const Bytes> message;  // the answer to a get, while a connection sends it
  };

  struct Connection {
    SealedSocket socket;
    Bytes in;
    size_t came = 0;  // the bytes that the socket gave for the request in `in`
    Message out;      // null: no answer is on its way
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
    held_ -= found->second->came;
    connections_.erase(found);
  }

  // Returns the bytes that are held for a connection. Connections that share an answer have an
  // equal part of the answer each.
  static size_t HeldFor(const Connection& connection) {
    const Message& out = connection.out;
    return connection.came + (out ? out->size() / static_cast<size_t>(out.use_count()) : 0);
  }

  // Drops the connections with the most bytes until the bytes of all connections are within the
  // bound. The caller must not hold a reference to a connection.
  void KeepWithinBound() {
    while (held_ > most_held_ && !connections_.empty()) {
      const auto most = std::ranges::max_element(
          connections_, {}, [](const auto& one) { return HeldFor(*one.second); });
      TUTTI_INFO(kLogBootstrap,
                 "the elastic store drops a connection with {} of {} bytes of unfinished requests "
                 "and answers",
                 HeldFor(*most->second), held_);
      Drop(most->first);
    }
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
    KeepWithinBound();
  }

  // Code kInProgress for a connection that ended in good order.
  Status Advance(uint64_t number, Connection& connection) {
    TUTTI_TRY(Flush(connection));
    TUTTI_ASSIGN(const int64_t got, connection.socket.TryRecv(connection.in));
    if (got == kEndOfStream) return Status(Code::kInProgress, "closed");
    connection.came += static_cast<size_t>(got);
    held_ += static_cast<size_t>(got);
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
    if (connection.in.size() > 4 + size || connection.waits || connection.out) {
      return RemoteError("a request before the answer to the one before");
    }
    TUTTI_ASSIGN(const Request request, ParseRequest(std::span(connection.in).subspan(4)));
    held_ -= std::exchange(connection.came, 0);
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
    const auto found = entries_.find(request.key);
    if (found != entries_.end() && found->second.entry.version > request.newer_than) {
      return Send(number, MessageOf(found->second));
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
        found == entries_.end() ? 0 : request.key.size() + found->second.entry.value.size();
    return stored_ - before + request.key.size() + request.value.size();
  }

  void GiveUp(uint64_t number) {
    const auto found = connections_.find(number);
    if (found == connections_.end() || !found->second->waits) return;
    StopWaiting(number, *found->second);
    Send(number, {Outcome::kNotYet, 0, ""});
  }

  Message Encode(const Answer& answer) {
    auto bytes = std::make_unique<Bytes>(WithSize(EncodeAnswer(answer)));
    held_ += bytes->size();
    return {bytes.release(), [this](const Bytes* one) {
              held_ -= one->size();
              delete one;
            }};
  }

  Message MessageOf(Stored& stored) {
    Message message = stored.message.lock();
    if (!message) {
      message = Encode({Outcome::kDone, stored.entry.version, stored.entry.value});
      stored.message = message;
    }
    return message;
  }

  void Send(uint64_t number, const Answer& answer) { Send(number, Encode(answer)); }

  // May drop any connection, and does nothing for a connection that was dropped already.
  void Send(uint64_t number, Message message) {
    const auto found = connections_.find(number);
    if (found == connections_.end()) return;
    Connection& connection = *found->second;
    connection.out = std::move(message);
    connection.sent = 0;
    // A connection that broke is dropped when the loop reports the break.
    if (!Flush(connection).ok()) return;
    KeepWithinBound();
  }

  Status Flush(Connection& connection) {
    if (!connection.out) return Status::Ok();
    while (connection.sent < connection.out->size()) {
      TUTTI_ASSIGN(const size_t sent,
                   connection.socket.TrySend(std::span(*connection.out).subspan(connection.sent)));
      if (sent == 0) return loop_.ModifyFd(connection.socket.fd(), EPOLLIN | EPOLLOUT);
      connection.sent += sent;
    }
    connection.out.reset();
    return loop_.ModifyFd(connection.socket.fd(), EPOLLIN);
  }

  EventLoop& loop_;
  const size_t most_held_;
  const OnSet on_set_;
  std::unique_ptr<AuthAcceptor> acceptor_;
  std::map<std::string, Stored> entries_;
  size_t stored_ = 0;  // the bytes of all keys and values
  // The bytes of requests that have come in part, and of answers that have not left, of all
  // connections. Outlives connections_, whose answers count themselves out.
  size_t held_ = 0;
  uint64_t last_version_ = 0;
  uint64_t next_connection_ = 1;
  std::map<uint64_t, std::unique_ptr<Connection>> connections_;
  std::multimap<std::string, uint64_t> waiting_;  // key → connection
};

StoreServer::StoreServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state,
                         uint16_t port)
    : loop_(std::move(loop)), state_(std::move(state)), port_(port) {}

Result<std::unique_ptr<StoreServer>> StoreServer::Create(SocketAddress address, const Key& key,
                                                         OnSet on_set, size_t most_held) {
  TUTTI_ASSIGN(std::unique_ptr<EventLoop> loop, EventLoop::Create("tutti-elastic"));
  TUTTI_ASSIGN(UniqueFd fd, tutti::Listen(address));
  auto state = std::make_shared<State>(*loop, most_held, std::move(on_set));
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
