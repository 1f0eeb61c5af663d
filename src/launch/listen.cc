#include "launch/listen.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "sys/local_socket.h"
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
        endpoint.local_name.empty() ? ListenAtHost(endpoint) : ListenLocal(endpoint.local_name);
    if (fd.ok()) return fd;
    attempts += fmt::format("{}{}: {}", attempts.empty() ? "" : "; ", endpoint.ToString(),
                            fd.status().message());
  }
  return SystemError("rank 0 cannot listen for the other ranks ({})", attempts);
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
