#include "launch/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "sys/network_interface.h"

namespace tutti::launch {
namespace {

// Returns all interfaces of both families where the host has IPv6, otherwise of IPv4 alone.
std::vector<SocketAddress> Everywhere(uint16_t port) {
  std::vector<SocketAddress> addresses(2);
  addresses[0].family = 6;
  addresses[1].family = 4;
  for (SocketAddress& address : addresses) address.port = port;
  return addresses;
}

// Listens at the first free address of `addresses`. *error is the last failure's errno.
Result<UniqueFd> ListenAtFirst(std::vector<SocketAddress> addresses, int* error) {
  Status last = InvalidArgument("there is no address to listen at");
  for (SocketAddress& address : addresses) {
    Result<UniqueFd> fd = tutti::Listen(address, {}, error);
    if (fd.ok()) return fd;
    last = std::move(fd).status();
    // Where the port is taken, IPv4 alone would not reach clients of IPv6.
    if (*error == EADDRINUSE && address.IsWildcard()) break;
  }
  return last;
}

Result<UniqueFd> ListenAtHost(const Endpoint& endpoint) {
  std::vector<SocketAddress> places;
  const Result<std::vector<SocketAddress>> found = LookUp(endpoint.host, endpoint.port);
  if (found.ok()) {
    const bool is_literal = std::any_of(
        found->begin(), found->end(),
        [&](const SocketAddress& address) { return address.HostText() == endpoint.host; });
    if (is_literal || endpoint.host == "localhost") places = *found;
  }
  const bool loopback = !places.empty() && places.front().IsLoopback();
  if (!loopback) {
    for (const SocketAddress& address : Everywhere(endpoint.port)) places.push_back(address);
  }
  int error = 0;
  return ListenAtFirst(std::move(places), &error);
}

Result<UniqueFd> LocalSocket(const std::string& name, sockaddr_un* address, socklen_t* length) {
  *address = {};
  address->sun_family = AF_UNIX;
  // The first byte of an abstract name is zero.
  if (name.empty() || name.size() >= sizeof(address->sun_path)) {
    return InvalidArgument("a local socket cannot be called \"{}\"", name);
  }
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "a Unix socket cannot be opened");
  return fd;
}

std::string LocalName(const std::string& name, int choice) {
  return choice == 0 ? name : fmt::format("{}-{}", name, choice);
}

Result<UniqueFd> ListenAtName(const std::string& name, int* error) {
  sockaddr_un address;
  socklen_t length = 0;
  *error = 0;
  TUTTI_ASSIGN(UniqueFd fd, LocalSocket(name, &address, &length));
  // All ranks of a machine may come at once; the kernel lowers the number to its own limit.
  constexpr int kBacklog = 16384;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
      ::listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  *error = errno;
  return ErrnoError(errno, fmt::format("listening at the local socket {} failed", name));
}

// Does not wait: where the queue of a listener is full, the attempt fails at once.
Result<UniqueFd> ConnectToName(const std::string& name) {
  sockaddr_un address;
  socklen_t length = 0;
  TUTTI_ASSIGN(UniqueFd fd, LocalSocket(name, &address, &length));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return ErrnoError(errno, fmt::format("connecting to the local socket {} failed", name));
  }
  TUTTI_TRY(CheckSameUser(fd.get()));
  return fd;
}

// Passes over names of other users, and over names at which nobody listens, because their owner
// cannot be known.
Result<UniqueFd> ListenLocally(const std::string& name) {
  Status last;
  for (int choice = 0; choice < kLocalNames; ++choice) {
    const std::string tried = LocalName(name, choice);
    int error = 0;
    Result<UniqueFd> fd = ListenAtName(tried, &error);
    if (fd.ok() || error != EADDRINUSE) return fd;
    if (ConnectToName(tried).ok()) {
      return SystemError("another job of this user meets at the local socket {}", tried);
    }
    last = std::move(fd).status();
  }
  return std::move(last).Annotate(
      fmt::format("other users hold all {} names of the meeting", kLocalNames));
}

}  // namespace

Result<UniqueFd> Listen(const std::vector<uint16_t>& ports, uint16_t* port) {
  Status last = InvalidArgument("no port was given to listen on");
  for (const uint16_t choice : ports) {
    int error = 0;
    Result<UniqueFd> fd = ListenAtFirst(Everywhere(choice), &error);
    if (fd.ok()) {
      TUTTI_ASSIGN(const SocketAddress address, LocalAddress(fd->get()));
      *port = address.port;
      return fd;
    }
    last = std::move(fd).status();
  }
  return last;
}

Result<UniqueFd> ListenAt(const std::vector<Endpoint>& endpoints) {
  std::string attempts;
  for (const Endpoint& endpoint : endpoints) {
    Result<UniqueFd> fd =
        endpoint.local_name.empty() ? ListenAtHost(endpoint) : ListenLocally(endpoint.local_name);
    if (fd.ok()) return fd;
    attempts += fmt::format("{}{}: {}", attempts.empty() ? "" : "; ", endpoint.ToString(),
                            fd.status().message());
  }
  return SystemError("rank 0 cannot listen for the other ranks ({})", attempts);
}

Result<UniqueFd> ConnectLocal(const std::string& name) {
  Result<UniqueFd> first = ConnectToName(name);
  for (int choice = 1; choice < kLocalNames && !first.ok(); ++choice) {
    Result<UniqueFd> fd = ConnectToName(LocalName(name, choice));
    if (fd.ok()) return fd;
  }
  return first;
}

Status CheckSameUser(int fd) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) {
    return ErrnoError(errno, "a connection cannot be examined");
  }
  if (domain != AF_UNIX) return Status::Ok();
  ucred peer = {};
  length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return ErrnoError(errno, "the user at the other end of a local socket is not known");
  }
  if (peer.uid == getuid() || peer.uid == 0) return Status::Ok();
  return RemoteError("the other end of a local socket belongs to user {}", peer.uid);
}

// Binds a port without listening: the kernel gives such a port only to sockets that name the port.
Result<UniqueFd> HoldPort(uint16_t* port) {
  Status last;
  for (const SocketAddress& address : Everywhere(0)) {
    sockaddr_storage storage;
    auto* const name = reinterpret_cast<sockaddr*>(&storage);
    const socklen_t length = address.ToSockaddr(storage);
    socklen_t got = sizeof(storage);
    UniqueFd fd(::socket(address.family == 6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
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

Result<std::vector<SocketAddress>> LookUp(const std::string& host, uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_flags = flags;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) return SystemError("looking up '{}': {}", host, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list; entry; entry = entry->ai_next) {
    const SocketAddress address = SocketAddress::FromSockaddr(entry->ai_addr);
    if (address.valid()) addresses.push_back(address);
  }
  if (addresses.empty()) return SystemError("'{}' has no address", host);
  return addresses;
}

std::vector<std::string> OwnAddresses() {
  std::vector<std::string> addresses;
  if (const auto interfaces = ListNetworkInterfaces(); interfaces.ok()) {
    for (const NetworkInterface& interface : *interfaces) {
      // A link-local address needs the name of the interface, which differs per host.
      if (interface.address.IsLoopback() || interface.address.IsLinkLocal()) continue;
      addresses.push_back(interface.address.HostText());
    }
  }
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

}  // namespace tutti::launch
