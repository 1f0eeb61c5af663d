#include "launch/handshake.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "bootstrap/wire.h"
#include "sys/event_loop.h"
#include "sys/tcp.h"

namespace tutti::launch {
namespace {

// One attempt at one address: ample for a handshake, short enough to get round several.
constexpr int64_t kAttemptNs = 3'000'000'000;
constexpr auto kBetweenRounds = std::chrono::milliseconds(50);

Hello ToHello(Claim claim) {
  WireWriter writer;
  writer.U32(claim.channel);
  writer.U32(claim.rank);
  return {Purpose::kLaunch, std::move(writer).Take()};
}

Result<Claim> FromHello(const Hello& hello) {
  WireReader reader(hello.payload);
  Claim claim;
  claim.channel = reader.U32();
  claim.rank = reader.U32();
  if (hello.purpose != Purpose::kLaunch || reader.failed() || !reader.AtEnd()) {
    return RemoteError("the connection is not for a launch");
  }
  return claim;
}

// The connections that have proven themselves; filled on the loop's thread, awaited by another.
class Gathering {
 public:
  explicit Gathering(const std::vector<Claim>& expected)
      : expected_(expected), proven_(expected.size()) {}

  void Take(UniqueFd fd, const Hello& hello) {
    const Result<Claim> claim = FromHello(hello);
    if (!claim.ok()) return;
    const std::lock_guard lock(mutex_);
    Status kept = Keep(std::move(fd), *claim);
    if (failure_.ok()) failure_ = std::move(kept);
    changed_.notify_all();
  }

  Result<std::vector<UniqueFd>> Await(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto over = [&] { return !failure_.ok() || num_proven_ == expected_.size(); };
    while (!over()) {
      if (deadline.Passed()) return Timeout("{} did not arrive", Missing());
      changed_.wait_for(lock, std::chrono::milliseconds(deadline.RemainingMs(1000)));
    }
    if (!failure_.ok()) return failure_;
    return std::move(proven_);
  }

 private:
  Status Keep(UniqueFd fd, Claim claim) {
    const auto found = std::find(expected_.begin(), expected_.end(), claim);
    if (found == expected_.end()) {
      return InvalidUsage("a process of this job says it is rank {}, which is not expected",
                          claim.rank);
    }
    UniqueFd& slot = proven_[static_cast<size_t>(found - expected_.begin())];
    if (slot.valid())
      return InvalidUsage("two processes of this job say they are rank {}", claim.rank);
    slot = std::move(fd);
    ++num_proven_;
    return Status::Ok();
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

  const std::vector<Claim>& expected_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<UniqueFd> proven_;
  size_t num_proven_ = 0;
  Status failure_;
};

// All addresses of a host, with the port.
Result<std::vector<SocketAddress>> LookUp(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &list);
  if (error != 0) return SystemError("looking up '{}': {}", endpoint.host, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    const SocketAddress address = SocketAddress::FromSockaddr(entry->ai_addr);
    if (address.valid()) addresses.push_back(address);
  }
  return addresses;
}

Result<UniqueFd> TryEndpoint(const Endpoint& endpoint, const Key& key, Claim claim,
                             Deadline deadline) {
  TUTTI_ASSIGN(const std::vector<SocketAddress> addresses, LookUp(endpoint));
  Status last = SystemError("'{}' has no address", endpoint.host);
  for (const SocketAddress& address : addresses) {
    WaitLimits limits;
    limits.deadline =
        Deadline::After(std::clamp<int64_t>(deadline.at_ns() - NowNs(), 0, kAttemptNs));
    Result<UniqueFd> fd = ConnectAuthenticated(address, key, ToHello(claim), limits);
    if (fd.ok()) return fd;
    last = std::move(fd).status();
  }
  return last;
}

}  // namespace

Result<UniqueFd> Listen(const std::vector<uint16_t>& ports, uint16_t* port) {
  Status last = InvalidArgument("no port was given to listen on");
  for (const uint16_t choice : ports) {
    // Of both families where the host has IPv6, else IPv4 alone.
    for (const uint16_t family : {uint16_t{6}, uint16_t{4}}) {
      SocketAddress address;
      address.family = family;
      address.port = choice;
      int error = 0;
      Result<UniqueFd> fd = tutti::Listen(address, {}, &error);
      if (fd.ok()) {
        *port = address.port;
        return fd;
      }
      last = std::move(fd).status();
      if (error == EADDRINUSE) break;
    }
  }
  return last;
}

// Bound and not listening: the kernel gives such a port to nobody who does not name it.
Result<UniqueFd> HoldPort(uint16_t* port) {
  Status last;
  for (const uint16_t family : {uint16_t{6}, uint16_t{4}}) {
    SocketAddress address;
    address.family = family;
    sockaddr_storage storage;
    auto* const name = reinterpret_cast<sockaddr*>(&storage);
    const socklen_t length = address.ToSockaddr(storage);
    socklen_t got = sizeof(storage);
    UniqueFd fd(::socket(family == 6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int one = 1;
    if (fd.valid() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) == 0 &&
        ::bind(fd.get(), name, length) == 0 && getsockname(fd.get(), name, &got) == 0) {
      *port = SocketAddress::FromSockaddr(name).port;
      return fd;
    }
    last = ErrnoError(errno, "no port can be held for the ranks");
  }
  return last;
}

Result<std::vector<UniqueFd>> AcceptClaims(UniqueFd listener, const Key& key,
                                           const std::vector<Claim>& expected, Deadline deadline) {
  TUTTI_ASSIGN(const std::unique_ptr<EventLoop> loop, EventLoop::Create("tutti-launch"));
  Gathering gathering(expected);
  const auto take = [&](UniqueFd fd, const Hello& hello, const SocketAddress&) {
    gathering.Take(std::move(fd), hello);
  };
  TUTTI_ASSIGN(const std::unique_ptr<AuthAcceptor> acceptor,
               AuthAcceptor::Create(*loop, std::move(listener), key, "rank 0 at launch", take));
  return gathering.Await(deadline);
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
    std::this_thread::sleep_for(kBetweenRounds);
  }
}

}  // namespace tutti::launch
