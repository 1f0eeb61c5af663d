#pragma once

// The two ends of a sealed connection, for tests and fuzzers.

#include <sys/socket.h>

#include <cstdlib>
#include <utility>

#include "bootstrap/sealed_socket.h"
#include "sys/random.h"

namespace tutti::testing {

// Returns sockets of this host that hold the keys of a handshake.
inline std::pair<SealedSocket, SealedSocket> SealedPair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
  const SecretKey there{Random<Key>()};
  const SecretKey back{Random<Key>()};
  return {SealedSocket(UniqueFd(fds[0]), there, back), SealedSocket(UniqueFd(fds[1]), back, there)};
}

}  // namespace tutti::testing
