#include "sys/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace tutti {
namespace {

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

}  // namespace

// Passes over names of other users, and over names at which nobody listens, because their owner
// cannot be known.
Result<UniqueFd> ListenLocal(const std::string& name, int* error_out) {
  int ignored = 0;
  int* const error = error_out ? error_out : &ignored;
  Status last;
  for (int choice = 0; choice < kLocalNames; ++choice) {
    const std::string tried = LocalName(name, choice);
    Result<UniqueFd> fd = ListenAtName(tried, error);
    if (fd.ok() || *error != EADDRINUSE) return fd;
    if (ConnectToName(tried).ok()) {
      return SystemError("another job of this user meets at the local socket {}", tried);
    }
    last = std::move(fd).status();
  }
  return std::move(last).Annotate(
      fmt::format("other users hold all {} names of the meeting", kLocalNames));
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

}  // namespace tutti
