#include "transport/net/socket/stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace tutti {

ssize_t SocketStream::Write(std::span<const iovec> pieces) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  ssize_t sent;
  do {
    sent = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t SocketStream::Read(std::span<const iovec> places) {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(places.data());
  message.msg_iovlen = places.size();
  ssize_t got;
  do {
    got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  return got;
}

void SocketStream::Reset() {
  // TCP answers a connect to nowhere with a reset; other sockets refuse it.
  sockaddr nowhere = {};
  nowhere.sa_family = AF_UNSPEC;
  if (::connect(fd_.get(), &nowhere, sizeof(nowhere)) != 0) ::shutdown(fd_.get(), SHUT_RDWR);
}

}  // namespace tutti
