#pragma once

// Which TCP connections the own process has, for tests that break connections.

#include <netinet/in.h>
#include <sys/socket.h>

#include <set>

namespace tutti::testing {

// Returns the descriptors of the own process's TCP connections.
inline std::set<int> Connections() {
  std::set<int> found;
  for (int fd = 0; fd < 4096; ++fd) {
    sockaddr_storage peer;
    socklen_t length = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0 &&
        (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
      found.insert(fd);
  }
  return found;
}

}  // namespace tutti::testing
