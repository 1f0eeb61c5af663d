#include "sys/tcp.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/text.h"
#include "sys/host.h"

namespace tutti {
namespace {

Result<uint16_t> ParsePort(std::string_view text, std::string_view whole) {
  if (const std::optional<uint16_t> port = WholeNumber<uint16_t>(text)) return *port;
  return InvalidArgument("\"{}\" has no port between 0 and 65535", whole);
}

Status CheckFamily(const SocketAddress& address, int family, std::string_view text) {
  if (family == 0 || address.family == family) return Status::Ok();
  return InvalidArgument("\"{}\" is an IPv{} address, but NCCL_SOCKET_FAMILY asks for IPv{}", text,
                         address.family, family);
}

// A scope may be a name or a number; a number is also valid for an interface without a name here.
Result<SocketAddress> ParseV6(std::string_view host, std::string_view whole) {
  SocketAddress address;
  address.family = 6;
  const size_t percent = host.find('%');
  const std::string plain(host.substr(0, percent));
  if (inet_pton(AF_INET6, plain.c_str(), address.bytes.data()) != 1) {
    return InvalidArgument("\"{}\" has no IPv6 address between the brackets", whole);
  }
  if (percent == std::string_view::npos) return address;
  const std::string scope(host.substr(percent + 1));
  address.scope_id = if_nametoindex(scope.c_str());
  if (address.scope_id == 0) {
    const std::optional<uint32_t> number = WholeNumber<uint32_t>(scope);
    if (!number)
      return InvalidArgument("\"{}\" names the interface \"{}\", which this host does not have",
                             whole, scope);
    address.scope_id = *number;
  }
  return address;
}

Result<SocketAddress> LookUpHost(const std::string& name, int family, std::string_view whole) {
  addrinfo hints = {};
  hints.ai_family = family == 4 ? AF_INET : family == 6 ? AF_INET6 : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    const std::string because =
        family == 0
            ? ""
            : fmt::format(" (only its IPv{} addresses count, as NCCL_SOCKET_FAMILY asks for)",
                          family);
    return InvalidArgument("the host of \"{}\" cannot be looked up: {}{}", whole,
                           gai_strerror(error), because);
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const SocketAddress address = SocketAddress::FromSockaddr(found->ai_addr);
  if (!address.valid()) return InvalidArgument("the host of \"{}\" has no IP address", whole);
  return address;
}

// An address that refuses, or is out of reach, is the other end's failure.
Status ConnectError(int error, std::string_view what) {
  Status status = ErrnoError(error, what);
  if (IsLackOfResources(error)) return status;
  return Status(Code::kRemoteError, std::string(status.message()));
}

// Returns the failure of a send or receive. The kernel gives a connection up with ETIMEDOUT when
// the other host answers nothing, neither data nor probes (sys/silence.h). The setting decides
// where the connection is probed.
Status MoveError(int fd, int error, std::string_view what) {
  if (error != ETIMEDOUT) return ErrnoError(error, what);
  int probed = 0;
  socklen_t length = sizeof(probed);
  getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &probed, &length);
  return RemoteError("{}: the other end's host answers nothing{}", what,
                     probed != 0 ? " (TUTTI_HOST_TIMEOUT_S)" : "");
}

Result<UniqueFd> NewSocket(const SocketAddress& address, int* error = nullptr) {
  const int domain = address.family == 4 ? AF_INET : AF_INET6;
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  UniqueFd fd(::socket(domain, type, 0));
  if (!fd.valid() && errno == EMFILE && GainDescriptors()) fd.Reset(::socket(domain, type, 0));
  if (error) *error = fd.valid() ? 0 : errno;
  if (!fd.valid() && errno == EMFILE) return NoDescriptorsError("a TCP socket cannot be opened");
  if (!fd.valid()) return ErrnoError(errno, "a TCP socket cannot be opened");
  const int one = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

// Binds and listens; 0 or errno.
int TryListen(int fd, const SocketAddress& address) {
  sockaddr_storage storage;
  const uint32_t length = address.ToSockaddr(storage);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&storage), length) != 0) return errno;
  // The kernel lowers the backlog to net.core.somaxconn; ranks of a large job arrive all at once.
  if (::listen(fd, 16384) != 0) return errno;
  return 0;
}

Result<UniqueFd> ListenAt(const SocketAddress& address, int& error, int option = SO_REUSEADDR) {
  TUTTI_ASSIGN(UniqueFd fd, NewSocket(address));
  // A port given by the user may still be in TIME_WAIT from the job before. A port of a range must
  // be free altogether, but SO_REUSEADDR admits no second listener, and so suits both cases.
  const int one = 1;
  setsockopt(fd.get(), SOL_SOCKET, option, &one, sizeof(one));
  error = TryListen(fd.get(), address);
  return fd;
}

}  // namespace

bool SocketAddress::IsLoopback() const {
  if (family == 4) return bytes[0] == 127;
  in6_addr v6;
  std::memcpy(&v6, bytes.data(), sizeof(v6));
  return family == 6 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool SocketAddress::IsLinkLocal() const {
  return family == 6 && bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

bool SocketAddress::IsWildcard() const {
  for (size_t i = 0; i < (family == 4 ? 4u : 16u); ++i) {
    if (bytes[i] != 0) return false;
  }
  return valid();
}

std::string SocketAddress::HostText() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (!valid()) return "(no address)";
  inet_ntop(family == 4 ? AF_INET : AF_INET6, bytes.data(), text.data(), text.size());
  std::string host(text.data());
  if (family == 6 && scope_id != 0) {
    std::array<char, IF_NAMESIZE> name{};
    host += '%';
    host +=
        if_indextoname(scope_id, name.data()) ? std::string(name.data()) : std::to_string(scope_id);
  }
  return host;
}

std::string SocketAddress::ToString() const {
  if (!valid()) return "(no address)";
  return fmt::format(fmt::runtime(family == 4 ? "{}:{}" : "[{}]:{}"), HostText(), port);
}

uint32_t SocketAddress::ToSockaddr(sockaddr_storage& out) const {
  std::memset(&out, 0, sizeof(out));
  if (family == 4) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, bytes.data(), 4);
    return sizeof(sockaddr_in);
  }
  auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  v6.sin6_scope_id = scope_id;
  std::memcpy(&v6.sin6_addr, bytes.data(), 16);
  return sizeof(sockaddr_in6);
}

SocketAddress SocketAddress::FromSockaddr(const sockaddr* address) {
  SocketAddress result;
  if (address == nullptr) return result;
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof(v4));
    result.family = 4;
    result.port = ntohs(v4.sin_port);
    std::memcpy(result.bytes.data(), &v4.sin_addr, 4);
  } else if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof(v6));
    result.family = 6;
    result.port = ntohs(v6.sin6_port);
    result.scope_id = v6.sin6_scope_id;
    std::memcpy(result.bytes.data(), &v6.sin6_addr, 16);
  }
  return result;
}

Result<SocketAddress> ParseSocketAddress(std::string_view text, int family) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) {
    return InvalidArgument("\"{}\" is not of the form host:port or [IPv6 address]:port", text);
  }
  const std::string_view host = text.substr(0, colon);
  TUTTI_ASSIGN(const uint16_t port, ParsePort(text.substr(colon + 1), text));
  SocketAddress address;
  if (host.front() == '[') {
    if (host.back() != ']') return InvalidArgument("\"{}\" lacks a closing bracket", text);
    TUTTI_ASSIGN(address, ParseV6(host.substr(1, host.size() - 2), text));
  } else if (host.find(':') != std::string_view::npos) {
    return InvalidArgument("\"{}\": an IPv6 address must stand in brackets, as in [::1]:5", text);
  } else if (const std::string name(host);
             inet_pton(AF_INET, name.c_str(), address.bytes.data()) == 1) {
    address.family = 4;
  } else {
    TUTTI_ASSIGN(address, LookUpHost(name, family, text));
  }
  address.port = port;
  TUTTI_TRY(CheckFamily(address, family, text));
  return address;
}

// Only a port in use leads to the next port: every other failure would be the same there.
Result<UniqueFd> Listen(SocketAddress& address, PortRange range, int* error_out) {
  const bool choose = address.port == 0 && !range.any();
  const uint32_t count = choose ? uint32_t{range.high} - range.low + 1u : 1u;
  uint32_t start = 0;
  if (choose && getrandom(&start, sizeof(start), 0) != sizeof(start)) start = 0;
  int error = 0;
  for (uint32_t i = 0; i < count; ++i) {
    SocketAddress attempt = address;
    if (choose) attempt.port = static_cast<uint16_t>(range.low + (start % count + i) % count);
    TUTTI_ASSIGN(UniqueFd fd, ListenAt(attempt, error));
    if (error == 0) {
      TUTTI_ASSIGN(address, LocalAddress(fd.get()));
      return fd;
    }
    if (error != EADDRINUSE) break;
  }
  if (error_out) *error_out = error;
  if (choose && error == EADDRINUSE) {
    return SystemError("all ports from {} to {} of {} are in use: widen TUTTI_PORT_RANGE",
                       range.low, range.high, address.HostText());
  }
  return ErrnoError(error, fmt::format("listening at {} failed", address.ToString()));
}

Result<UniqueFd> ListenShared(const SocketAddress& address) {
  int error = 0;
  TUTTI_ASSIGN(UniqueFd fd, ListenAt(address, error, SO_REUSEPORT));
  if (error != 0)
    return ErrnoError(error, fmt::format("listening at {} failed", address.ToString()));
  return fd;
}

Result<UniqueFd> Accept(int listen_fd, SocketAddress* peer, int* error) {
  sockaddr_storage storage;
  socklen_t length = sizeof(storage);
  for (;;) {
    UniqueFd fd(::accept4(listen_fd, reinterpret_cast<sockaddr*>(&storage), &length,
                          SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      const int one = 1;
      setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
      if (peer) *peer = SocketAddress::FromSockaddr(reinterpret_cast<const sockaddr*>(&storage));
      return fd;
    }
    if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return UniqueFd();
    if (error) *error = errno;
    return ErrnoError(errno, "accepting a connection failed");
  }
}

bool IsLackOfResources(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ||
         error == EADDRNOTAVAIL;
}

Result<UniqueFd> StartConnect(const SocketAddress& address, int* error) {
  if (error) *error = EINVAL;
  if (!address.valid()) return InternalError("there is no address to connect to");
  TUTTI_ASSIGN(UniqueFd fd, NewSocket(address, error));
  sockaddr_storage storage;
  const uint32_t length = address.ToSockaddr(storage);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) == 0 ||
      errno == EINPROGRESS || errno == EINTR) {
    return fd;
  }
  const int failure = errno;
  if (error) *error = failure;
  return ConnectError(failure, fmt::format("connecting to {} failed", address.ToString()));
}

int ConnectOutcome(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

void ResetConnection(int fd) {
  // TCP answers a connect to nowhere with a reset; other sockets refuse the connection.
  sockaddr nowhere = {};
  nowhere.sa_family = AF_UNSPEC;
  if (::connect(fd, &nowhere, sizeof(nowhere)) != 0) ::shutdown(fd, SHUT_RDWR);
}

Result<UniqueFd> Connect(const SocketAddress& address, const WaitLimits& limits, int* error) {
  if (error) *error = EINVAL;
  Result<UniqueFd> started = StartConnect(address, error);
  if (!started.ok()) return started;
  UniqueFd fd = std::move(started).value();
  const std::string what = fmt::format("connecting to {}", address.ToString());
  if (Status status = WaitReady(fd.get(), POLLOUT, limits, what); !status.ok()) {
    if (error) *error = ETIMEDOUT;
    return status;
  }
  const int outcome = ConnectOutcome(fd.get());
  if (error) *error = outcome;
  if (outcome != 0) return ConnectError(outcome, what + " failed");
  return fd;
}

// Sleeps in slices, since poll cannot see the abort flag.
Status WaitReady(int fd, short events, const WaitLimits& limits, std::string_view what) {
  pollfd entry = {fd, events, 0};
  for (;;) {
    if (limits.Aborted()) return InternalError("{}: aborted by the caller", what);
    const bool looks = limits.abort_flag != nullptr || limits.follow != nullptr;
    const int timeout_ms = limits.deadline.RemainingMs(looks ? kAbortCheckMs : 10'000);
    const int ready = ::poll(&entry, 1, timeout_ms);
    if (ready > 0) return Status::Ok();
    if (ready < 0 && errno != EINTR) return ErrnoError(errno, fmt::format("{}: poll failed", what));
    TUTTI_TRY(limits.Follow());
    if (limits.deadline.Passed()) return Timeout("{}: no answer before the deadline", what);
  }
}

Result<size_t> TrySend(int fd, std::span<const std::byte> data) {
  for (;;) {
    const ssize_t sent = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    return MoveError(fd, errno, "sending failed");
  }
}

Result<int64_t> TryRecv(int fd, std::span<std::byte> data) {
  for (;;) {
    const ssize_t received = ::recv(fd, data.data(), data.size(), MSG_DONTWAIT);
    if (received > 0) return int64_t{received};
    if (received == 0) return kEndOfStream;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return int64_t{0};
    return MoveError(fd, errno, "receiving failed");
  }
}

Status SendAll(int fd, std::span<const std::byte> data, const WaitLimits& limits) {
  while (!data.empty()) {
    TUTTI_ASSIGN(const size_t sent, TrySend(fd, data));
    data = data.subspan(sent);
    if (sent == 0) TUTTI_TRY(WaitReady(fd, POLLOUT, limits, "sending"));
  }
  return Status::Ok();
}

Status RecvAll(int fd, std::span<std::byte> data, const WaitLimits& limits) {
  while (!data.empty()) {
    TUTTI_ASSIGN(const int64_t received, TryRecv(fd, data));
    if (received == kEndOfStream) return RemoteError("the other end closed the connection");
    data = data.subspan(static_cast<size_t>(received));
    if (received == 0) TUTTI_TRY(WaitReady(fd, POLLIN, limits, "receiving"));
  }
  return Status::Ok();
}

Result<SocketAddress> LocalAddress(int fd) {
  sockaddr_storage storage;
  socklen_t length = sizeof(storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return ErrnoError(errno, "getsockname failed");
  }
  return SocketAddress::FromSockaddr(reinterpret_cast<const sockaddr*>(&storage));
}

// Equal addresses at both ends mean a connection within this host, also without the loopback
// interface.
void DoNotPaceWithinHost(int fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t length = sizeof(name) - 1;
  if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) != 0) return;
  if (!std::string_view(name).starts_with("bbr")) return;
  sockaddr_storage storage;
  socklen_t bytes = sizeof(storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return;
  const SocketAddress peer =
      SocketAddress::FromSockaddr(reinterpret_cast<const sockaddr*>(&storage));
  const Result<SocketAddress> local = LocalAddress(fd);
  if (!local.ok() || peer.family == 0 || local->HostText() != peer.HostText()) return;
  // A process without privileges may always have Reno, and other algorithms as the system lets it.
  for (const std::string_view other : {"cubic", "reno"})
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, other.data(),
                   static_cast<socklen_t>(other.size())) == 0)
      return;
}

// Connecting a UDP socket sends nothing: the kernel only chooses the route, and with the route the
// source address.
Result<SocketAddress> SourceAddressFor(const SocketAddress& peer) {
  const int domain = peer.family == 4 ? AF_INET : AF_INET6;
  const UniqueFd fd(::socket(domain, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoError(errno, "a UDP socket cannot be opened");
  SocketAddress target = peer;
  if (target.port == 0) target.port = 9;  // connect(2) refuses port 0; nothing is ever sent
  sockaddr_storage storage;
  const uint32_t length = target.ToSockaddr(storage);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0) {
    return ErrnoError(errno, fmt::format("this host has no route to {}", peer.HostText()));
  }
  TUTTI_ASSIGN(SocketAddress source, LocalAddress(fd.get()));
  source.port = 0;
  return source;
}

}  // namespace tutti
