#include "launch/handshake.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace tutti::launch {
namespace {

using Nonce = std::array<uint8_t, 32>;
using Mac = std::array<uint8_t, crypto_auth_BYTES>;
static_assert(sizeof(Key) == crypto_auth_KEYBYTES);

struct WireClaim {
  uint32_t channel;
  uint32_t rank;
};
struct RootProof {
  Nonce nonce;
  Mac mac;
};
struct RankProof {
  Mac mac;
  WireClaim claim;
};
static_assert(sizeof(RootProof) == 64 && sizeof(RankProof) == 40);

// A peer that has connected gets this long to prove itself: ample on a slow link, short for a
// stranger.
constexpr int64_t kProofNs = 10'000'000'000;
// Connections that have not proven themselves yet. Beyond it the oldest goes, so a flood cannot
// exhaust descriptors.
constexpr size_t kMaxUnproven = 256;
constexpr int64_t kConnectNs = 3'000'000'000;
constexpr int kRetryMs = 50;

void FillRandom(void* data, size_t bytes) {
  if (sodium_init() >= 0) randombytes_buf(data, bytes);
}

template <typename... Parts>
Mac Authenticate(const Key& key, std::string_view role, const Parts&... parts) {
  crypto_auth_hmacsha512256_state state;
  crypto_auth_hmacsha512256_init(&state, key.data(), key.size());
  const auto add = [&](const void* data, size_t bytes) {
    crypto_auth_hmacsha512256_update(&state, static_cast<const unsigned char*>(data), bytes);
  };
  add(role.data(), role.size());
  (add(&parts, sizeof(parts)), ...);
  Mac mac;
  crypto_auth_hmacsha512256_final(&state, mac.data());
  return mac;
}

bool Equal(const Mac& a, const Mac& b) { return sodium_memcmp(a.data(), b.data(), a.size()) == 0; }

void SetNoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Rank 0's view of one connection that has yet to prove itself.
struct Candidate {
  UniqueFd fd;
  Deadline deadline = Deadline::After(kProofNs);
  size_t received = 0;
  Nonce rank_nonce{};
  Nonce root_nonce{};
  RankProof proof{};
};

enum class Step { kWaiting, kProven, kDrop };

// Reads what has come. The first 32 bytes are the rank's nonce, answered with the root's proof; the
// rest is the rank's own proof.
Step Advance(const Key& key, Candidate* candidate) {
  for (;;) {
    const bool first = candidate->received < sizeof(Nonce);
    char* const target = first ? reinterpret_cast<char*>(&candidate->rank_nonce)
                               : reinterpret_cast<char*>(&candidate->proof);
    const size_t offset = first ? candidate->received : candidate->received - sizeof(Nonce);
    const size_t size = first ? sizeof(Nonce) : sizeof(RankProof);
    const ssize_t got = recv(candidate->fd.get(), target + offset, size - offset, MSG_DONTWAIT);
    if (got == 0) return Step::kDrop;
    if (got < 0) return errno == EAGAIN || errno == EINTR ? Step::kWaiting : Step::kDrop;
    candidate->received += static_cast<size_t>(got);
    if (candidate->received == sizeof(Nonce)) {
      FillRandom(&candidate->root_nonce, sizeof(Nonce));
      const RootProof answer{candidate->root_nonce, Authenticate(key, "root", candidate->rank_nonce,
                                                                 candidate->root_nonce)};
      // 64 bytes into an empty socket buffer: all or a dead peer.
      if (send(candidate->fd.get(), &answer, sizeof(answer), MSG_NOSIGNAL | MSG_DONTWAIT) !=
          static_cast<ssize_t>(sizeof(answer))) {
        return Step::kDrop;
      }
    } else if (candidate->received == sizeof(Nonce) + sizeof(RankProof)) {
      const Mac expected = Authenticate(key, "rank", candidate->rank_nonce, candidate->root_nonce,
                                        candidate->proof.claim);
      return Equal(expected, candidate->proof.mac) ? Step::kProven : Step::kDrop;
    }
  }
}

class Acceptor {
 public:
  Acceptor(int listener, const Key& key, const std::vector<Claim>& expected)
      : listener_(listener), key_(key), expected_(expected), proven_(expected.size()) {}

  Result<std::vector<UniqueFd>> Run(Deadline deadline) {
    while (num_proven_ < expected_.size()) {
      if (deadline.Passed()) return Timeout("{} did not arrive", Missing());
      TUTTI_TRY(PollOnce(deadline));
    }
    return std::move(proven_);
  }

 private:
  Status PollOnce(Deadline deadline) {
    std::vector<pollfd> entries;
    entries.push_back({listener_, POLLIN, 0});
    for (const auto& candidate : candidates_) entries.push_back({candidate->fd.get(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), deadline.RemainingMs(200)) < 0 && errno != EINTR) {
      return ErrnoError(errno, "waiting for the other ranks");
    }
    if (entries[0].revents) AcceptOne();
    for (size_t i = 0; i < candidates_.size();) {
      const Step step =
          candidates_[i]->deadline.Passed() ? Step::kDrop : Advance(key_, candidates_[i].get());
      if (step == Step::kProven) TUTTI_TRY(Keep(candidates_[i].get()));
      if (step == Step::kWaiting) {
        ++i;
      } else {
        candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    return {};
  }

  void AcceptOne() {
    UniqueFd fd(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd.valid()) return;
    SetNoDelay(fd.get());
    if (candidates_.size() >= kMaxUnproven) candidates_.erase(candidates_.begin());
    candidates_.push_back(std::make_unique<Candidate>());
    candidates_.back()->fd = std::move(fd);
  }

  Status Keep(Candidate* candidate) {
    const Claim claim{ntohl(candidate->proof.claim.channel), ntohl(candidate->proof.claim.rank)};
    const auto found = std::find(expected_.begin(), expected_.end(), claim);
    if (found == expected_.end()) {
      return InvalidUsage("a process of this job says it is rank {}, which is not expected",
                          claim.rank);
    }
    UniqueFd& slot = proven_[static_cast<size_t>(found - expected_.begin())];
    if (slot.valid())
      return InvalidUsage("two processes of this job say they are rank {}", claim.rank);
    slot = std::move(candidate->fd);
    ++num_proven_;
    return {};
  }

  std::string Missing() const {
    std::string names;
    size_t missing = 0;
    for (size_t i = 0; i < expected_.size(); ++i) {
      if (proven_[i].valid()) continue;
      if (++missing <= 16) names += fmt::format("{}{}", missing > 1 ? ", " : "", expected_[i].rank);
    }
    if (missing > 16) names += fmt::format(" and {} more", missing - 16);
    return fmt::format("rank{} {}", missing > 1 ? "s" : "", names);
  }

  const int listener_;
  const Key& key_;
  const std::vector<Claim>& expected_;
  std::vector<UniqueFd> proven_;
  size_t num_proven_ = 0;
  std::vector<std::unique_ptr<Candidate>> candidates_;
};

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<UniqueFd> ConnectTo(const addrinfo& address, Deadline deadline) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "opening a socket");
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ErrnoError(errno, "connecting");
    pollfd entry{fd.get(), POLLOUT, 0};
    while (poll(&entry, 1, deadline.RemainingMs(1000)) <= 0) {
      if (deadline.Passed()) return Timeout("no answer");
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return ErrnoError(error, "connecting");
  }
  SetNoDelay(fd.get());
  return fd;
}

Status Prove(int fd, const Key& key, Claim claim, Deadline deadline) {
  Nonce nonce;
  FillRandom(&nonce, sizeof(nonce));
  TUTTI_TRY(SendAll(fd, &nonce, sizeof(nonce), deadline));
  RootProof root;
  TUTTI_TRY(ReceiveAll(fd, &root, sizeof(root), deadline));
  if (!Equal(root.mac, Authenticate(key, "root", nonce, root.nonce))) {
    return RemoteError("what listens there does not hold this job's key");
  }
  RankProof proof{};
  proof.claim = {htonl(claim.channel), htonl(claim.rank)};
  proof.mac = Authenticate(key, "rank", nonce, root.nonce, proof.claim);
  return SendAll(fd, &proof, sizeof(proof), deadline);
}

Result<UniqueFd> TryEndpoint(const Endpoint& endpoint, const Key& key, Claim claim,
                             Deadline deadline) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (error != 0) return SystemError("looking up '{}': {}", endpoint.host, gai_strerror(error));
  const AddressList owner(list, &freeaddrinfo);
  Status last = SystemError("'{}' has no address", endpoint.host);
  for (const addrinfo* address = list; address; address = address->ai_next) {
    const Deadline attempt =
        Deadline::After(std::clamp<int64_t>(deadline.at_ns() - NowNs(), 0, kConnectNs));
    Result<UniqueFd> fd = ConnectTo(*address, attempt);
    if (!fd.ok()) {
      last = std::move(fd).status();
      continue;
    }
    Status proven = Prove(fd->get(), key, claim, attempt);
    if (proven.ok()) return fd;
    last = std::move(proven);
  }
  return last;
}

}  // namespace

Key RandomKey() {
  Key key;
  FillRandom(key.data(), key.size());
  return key;
}

Key DeriveKey(std::string_view text) {
  Key key{};
  if (sodium_init() >= 0) {
    crypto_generichash(key.data(), key.size(), reinterpret_cast<const unsigned char*>(text.data()),
                       text.size(), nullptr, 0);
  }
  return key;
}

Result<UniqueFd> Listen(const std::vector<uint16_t>& ports, uint16_t* port) {
  // A dual-stack socket where the host has IPv6, else an IPv4 one.
  int family = AF_INET6;
  UniqueFd probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!probe.valid()) family = AF_INET;
  Status last = InvalidArgument("no port was given to listen on");
  for (const uint16_t choice : ports) {
    UniqueFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) return ErrnoError(errno, "opening a listening socket");
    const int on = 1;
    const int off = 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage address{};
    socklen_t size = sizeof(sockaddr_in);
    if (family == AF_INET6) {
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
      auto* v6 = reinterpret_cast<sockaddr_in6*>(&address);
      v6->sin6_family = AF_INET6;
      v6->sin6_addr = in6addr_any;
      v6->sin6_port = htons(choice);
      size = sizeof(sockaddr_in6);
    } else {
      auto* v4 = reinterpret_cast<sockaddr_in*>(&address);
      v4->sin_family = AF_INET;
      v4->sin_port = htons(choice);
    }
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(fd.get(), 1024) != 0) {
      last = ErrnoError(errno, fmt::format("listening on port {}", choice));
      continue;
    }
    size = sizeof(address);
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
    // The port lies at the same place in both kinds of address.
    *port = ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
    return fd;
  }
  return last;
}

Result<std::vector<UniqueFd>> AcceptClaims(int listener, const Key& key,
                                           const std::vector<Claim>& expected, Deadline deadline) {
  return Acceptor(listener, key, expected).Run(deadline);
}

Result<UniqueFd> ConnectWithClaim(const std::vector<Endpoint>& endpoints, const Key& key,
                                  Claim claim, Deadline deadline) {
  if (endpoints.empty()) return InvalidArgument("rank 0 gave no address to connect to");
  std::string attempts;
  for (;;) {
    attempts.clear();
    for (const Endpoint& endpoint : endpoints) {
      Result<UniqueFd> fd = TryEndpoint(endpoint, key, claim, deadline);
      if (fd.ok()) return fd;
      attempts += fmt::format("{}{} port {}: {}", attempts.empty() ? "" : "; ", endpoint.host,
                              endpoint.port, fd.status().message());
      if (deadline.Passed()) return Timeout("rank 0 could not be reached ({})", attempts);
    }
    poll(nullptr, 0, kRetryMs);
  }
}

}  // namespace tutti::launch
