#include "sys/fd_server.h"

#include <sodium.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/erased.h"
#include "base/log.h"
#include "base/mutex.h"
#include "sys/fd_wire.h"

namespace tutti {
namespace {

constexpr int kListenBacklog = 256;
constexpr int kAcceptsPerCall = 64;  // afterwards other users of the loop get their turn
// New clients wait this long when this process has no descriptor left to accept them with.
constexpr int64_t kAcceptPauseNs = 50'000'000;
// A connection is safe for this long from being closed in favour of newer connections. A live
// client proves itself in well under a millisecond, on an overloaded machine in tenths of a second.
constexpr int64_t kGraceNs = 200'000'000;
// New clients wait this long before the server looks for room again.
constexpr int64_t kLookAgainNs = 5'000'000;

std::string PeerText(int fd) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return "an unknown process";
  return fmt::format("process {} of user {}", peer.pid, peer.uid);
}

class FdServerImpl final : public FdServer {
 public:
  FdServerImpl(EventLoop& loop, int64_t handshake_ns, std::string name, UniqueFd listener)
      : loop_(loop),
        handshake_ns_(handshake_ns),
        name_(std::move(name)),
        listener_(std::move(listener)) {}

  ~FdServerImpl() override {
    loop_.RunSync([this] {
      loop_.RemoveFd(listener_.get());
      if (accept_paused_) loop_.CancelTimer(accept_timer_);
      while (!clients_.empty()) Close(clients_.begin()->first);
    });
  }

  Status Start() {
    return loop_.AddFd(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  }

  const std::string& name() const override { return name_; }

  uint64_t Offer(int fd, const FdKey& key) override {
    const MutexLock lock(mutex_);
    uint64_t id = 0;
    while (id == 0 || offers_.contains(id)) randombytes_buf(&id, sizeof(id));
    offers_.emplace(id, Offered{fd, key});
    return id;
  }

  void Withdraw(uint64_t id) override {
    const MutexLock lock(mutex_);
    offers_.erase(id);
  }

 private:
  struct Offered {
    int fd;
    Erased<FdKey> key;
  };
  struct Client {
    UniqueFd fd;
    EventLoop::TimerId timer = 0;
    AcceptLimit::Number place = 0;  // among the loop's unauthenticated connections
    bool challenged = false;
    fd_wire::Session session;
  };

  void Accept();
  void AddClient(UniqueFd fd);
  void PauseAccepting(int64_t pause_ns);
  void WarnOfShortage(int error);
  void Serve(uint64_t serial);
  // Answer one message; false closes the connection.
  bool Challenge(Client& client, const fd_wire::Message& hello);
  bool Grant(Client& client, const fd_wire::Message& answer);
  void Close(uint64_t serial);

  EventLoop& loop_;
  const int64_t handshake_ns_;
  const std::string name_;
  const UniqueFd listener_;

  Mutex mutex_;
  std::unordered_map<uint64_t, Offered> offers_ TUTTI_GUARDED_BY(mutex_);

  // The loop's thread only. Ordered by arrival: the first is the oldest.
  std::map<uint64_t, Client> clients_;
  uint64_t next_serial_ = 0;
  bool accept_paused_ = false;
  bool accept_failed_ = false;  // since a client was last accepted: complain once
  EventLoop::TimerId accept_timer_ = 0;
};

// Without a free descriptor, the reserve or the oldest unproved connection makes room for the
// newcomer.
void FdServerImpl::Accept() {
  for (int i = 0; i < kAcceptsPerCall; ++i) {
    if (!loop_.accept_limit().Admits(kGraceNs)) {
      PauseAccepting(kLookAgainNs);
      return;
    }
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      const int error = errno;
      if (error == EINTR || error == ECONNABORTED) continue;
      if (error == EAGAIN) return;
      AcceptLimit& limit = loop_.accept_limit();
      if ((error == EMFILE || error == ENFILE) && (limit.ReleaseReserve() || limit.CloseFirst()))
        continue;
      WarnOfShortage(error);
      PauseAccepting(kAcceptPauseNs);
      return;
    }
    accept_failed_ = false;
    AddClient(std::move(fd));
  }
}

void FdServerImpl::AddClient(UniqueFd fd) {
  const uint64_t serial = next_serial_++;
  const int raw_fd = fd.get();
  Client& client = clients_[serial];
  client.fd = std::move(fd);
  client.timer = loop_.AddTimer(handshake_ns_, [this, serial] { Close(serial); });
  client.place = loop_.accept_limit().Enter([this, serial] { Close(serial); });
  if (!loop_.AddFd(raw_fd, EPOLLIN, [this, serial](uint32_t) { Serve(serial); }).ok())
    Close(serial);
}

void FdServerImpl::WarnOfShortage(int error) {
  if (!accept_failed_)
    TUTTI_WARN("ranks that want shared memory must wait: accepting them fails with {}",
               strerrordesc_np(error));
  accept_failed_ = true;
}

// A level-triggered listener would keep the loop spinning while accepting fails.
void FdServerImpl::PauseAccepting(int64_t pause_ns) {
  if (accept_paused_ || !loop_.ModifyFd(listener_.get(), 0).ok()) return;
  accept_paused_ = true;
  accept_timer_ = loop_.AddTimer(pause_ns, [this] {
    accept_paused_ = false;
    static_cast<void>(loop_.ModifyFd(listener_.get(), EPOLLIN));
  });
}

// Every message is an answer to the last step. Anything else closes the connection.
void FdServerImpl::Serve(uint64_t serial) {
  const auto found = clients_.find(serial);
  if (found == clients_.end()) return;
  Client& client = found->second;
  const fd_wire::Received received = fd_wire::Receive(client.fd.get(), nullptr);
  if (received.outcome == fd_wire::Outcome::kNothing) return;
  bool keep = false;
  if (received.outcome == fd_wire::Outcome::kMessage) {
    keep =
        client.challenged ? Grant(client, received.message) : Challenge(client, received.message);
  }
  if (!keep) Close(serial);
}

// The server proves the key first: a client must not take a descriptor from a stranger who owns the
// name.
bool FdServerImpl::Challenge(Client& client, const fd_wire::Message& hello) {
  if (hello.type != fd_wire::kHello) return false;
  Erased<FdKey> key;
  {
    const MutexLock lock(mutex_);
    const auto offer = offers_.find(hello.id);
    if (offer == offers_.end()) {
      fd_wire::Send(client.fd.get(), fd_wire::Make(fd_wire::kWithdrawn, hello.id), -1);
      return false;
    }
    key = offer->second.key;
  }
  client.challenged = true;
  client.session.id = hello.id;
  client.session.client_nonce = hello.nonce;
  client.session.server_nonce = fd_wire::RandomNonce();
  fd_wire::Message challenge = fd_wire::Make(fd_wire::kChallenge, hello.id);
  challenge.nonce = client.session.server_nonce;
  challenge.proof = fd_wire::Prove(fd_wire::Role::kServer, key, name_, client.session);
  return fd_wire::Send(client.fd.get(), challenge, -1);
}

bool FdServerImpl::Grant(Client& client, const fd_wire::Message& answer) {
  if (answer.type != fd_wire::kAnswer) return false;
  // Held while sending: after Withdraw the owner closes the descriptor, and its number may mean
  // another file.
  const MutexLock lock(mutex_);
  const auto offer = offers_.find(client.session.id);
  if (offer == offers_.end()) {
    fd_wire::Send(client.fd.get(), fd_wire::Make(fd_wire::kWithdrawn, client.session.id), -1);
    return false;
  }
  const fd_wire::Proof expected =
      fd_wire::Prove(fd_wire::Role::kClient, offer->second.key, name_, client.session);
  if (!fd_wire::Equal(expected, answer.proof)) {
    TUTTI_INFO(kLogShm, "refused a descriptor to {}: it does not hold the key",
               PeerText(client.fd.get()));
    return false;
  }
  TUTTI_INFO(kLogShm, "handed a descriptor to {}", PeerText(client.fd.get()));
  fd_wire::Send(client.fd.get(), fd_wire::Make(fd_wire::kGrant, client.session.id),
                offer->second.fd);
  return false;
}

void FdServerImpl::Close(uint64_t serial) {
  const auto found = clients_.find(serial);
  if (found == clients_.end()) return;
  loop_.CancelTimer(found->second.timer);
  loop_.accept_limit().Leave(found->second.place);
  loop_.RemoveFd(found->second.fd.get());
  clients_.erase(found);
  loop_.accept_limit().RestoreReserve();
}

}  // namespace

Result<std::unique_ptr<FdServer>> FdServer::Create(EventLoop& loop, int64_t handshake_ns) {
  if (sodium_init() < 0) return SystemError("libsodium found no source of random numbers");
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "cannot make a Unix socket");
  std::string name = fd_wire::RandomName();
  sockaddr_un address;
  const socklen_t length = fd_wire::AbstractAddress(name, address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return ErrnoError(errno, fmt::format("cannot bind the Unix socket @{}", name));
  if (listen(fd.get(), kListenBacklog) != 0)
    return ErrnoError(errno, fmt::format("cannot listen on the Unix socket @{}", name));
  auto server = std::make_unique<FdServerImpl>(loop, handshake_ns, std::move(name), std::move(fd));
  TUTTI_TRY(server->Start());
  return std::unique_ptr<FdServer>(std::move(server));
}

}  // namespace tutti
