#include "transport/net/socket/keepalive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace tutti {

Status KeepAlive(int fd) {
  constexpr int kOn = 1;
  constexpr int kIdleS = 30;
  constexpr int kBetweenS = 6;
  constexpr int kProbes = 5;
  if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn)) != 0 ||
      setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &kOn, sizeof(kOn)) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleS, sizeof(kIdleS)) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kBetweenS, sizeof(kBetweenS)) != 0 ||
      setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(kProbes)) != 0) {
    return ErrnoError(errno, "preparing a data socket failed");
  }
  return Status::Ok();
}

}  // namespace tutti
