#include "sys/fd_server.h"

#include <sodium.h>
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
#include "sys/bounded_listener.h"
#include "sys/fd_wire.h"

namespace tutti {
namespace {

constexpr int kListenBacklog = 256;

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
        name_(std::move(name)),
        listener_(std::make_shared<BoundedListener>(
            loop, loop.accept_limit(), std::move(listener),
            BoundedListener::Options{
                .name = "the server of shared memory",
                .time_ns = handshake_ns,
                .on_connection = [this](auto number, int fd,
                                        const auto&) { clients_[number].fd = fd; },
                .on_ready = [this](auto number) { Serve(number); },
                .on_over = [this](auto number, auto) { Close(number); }})) {}

  ~FdServerImpl() override {
    loop_.RunSync([this] { listener_->Close(); });
  }

  Status Start() { return listener_->Start(); }

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
    int fd = -1;  // of the listener
    bool challenged = false;
    fd_wire::Session session;
  };

  void Serve(BoundedListener::Number number);
  // Answer one message; false closes the connection.
  bool Challenge(Client& client, const fd_wire::Message& hello);
  bool Grant(Client& client, const fd_wire::Message& answer);
  void Close(BoundedListener::Number number);

  EventLoop& loop_;
  const std::string name_;

  Mutex mutex_;
  std::unordered_map<uint64_t, Offered> offers_ TUTTI_GUARDED_BY(mutex_);

  std::map<BoundedListener::Number, Client> clients_;  // the loop's thread only
  const std::shared_ptr<BoundedListener> listener_;
};

// Every message is an answer to the last step. Anything else closes the connection.
void FdServerImpl::Serve(BoundedListener::Number number) {
  Client& client = clients_.at(number);
  const fd_wire::Received received = fd_wire::Receive(client.fd, nullptr);
  if (received.outcome == fd_wire::Outcome::kNothing) return;
  bool keep = false;
  if (received.outcome == fd_wire::Outcome::kMessage) {
    keep =
        client.challenged ? Grant(client, received.message) : Challenge(client, received.message);
  }
  if (!keep) Close(number);
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
      fd_wire::Send(client.fd, fd_wire::Make(fd_wire::kWithdrawn, hello.id), -1);
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
  return fd_wire::Send(client.fd, challenge, -1);
}

bool FdServerImpl::Grant(Client& client, const fd_wire::Message& answer) {
  if (answer.type != fd_wire::kAnswer) return false;
  // Held while sending: after Withdraw the owner closes the descriptor, and its number may mean
  // another file.
  const MutexLock lock(mutex_);
  const auto offer = offers_.find(client.session.id);
  if (offer == offers_.end()) {
    fd_wire::Send(client.fd, fd_wire::Make(fd_wire::kWithdrawn, client.session.id), -1);
    return false;
  }
  const fd_wire::Proof expected =
      fd_wire::Prove(fd_wire::Role::kClient, offer->second.key, name_, client.session);
  if (!fd_wire::Equal(expected, answer.proof)) {
    TUTTI_INFO(kLogShm, "refused a descriptor to {}: it does not hold the key",
               PeerText(client.fd));
    return false;
  }
  TUTTI_INFO(kLogShm, "handed a descriptor to {}", PeerText(client.fd));
  fd_wire::Send(client.fd, fd_wire::Make(fd_wire::kGrant, client.session.id), offer->second.fd);
  return false;
}

void FdServerImpl::Close(BoundedListener::Number number) {
  clients_.erase(number);
  listener_->Drop(number);
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
