#include "transport/net/socket/resume.h"

#include <sys/socket.h>

namespace tutti {

Result<std::optional<Sockets>> ResumePoint::Step() {
  if (!Offered()) return std::optional<Sockets>();
  const MutexLock lock(mutex_);
  // A later attempt may have begun meanwhile.
  if (missing_ > 0) return std::optional<Sockets>();
  offered_.store(false, std::memory_order_release);
  return std::optional<Sockets>(std::move(sockets_));
}

void ResumePoint::Use(std::vector<int> fds) {
  const MutexLock lock(mutex_);
  in_use_ = std::move(fds);
}

// Sockets that came already are closed, since no comm will take them.
void ResumePoint::Refuse() {
  const MutexLock lock(mutex_);
  refusing_ = true;
  sockets_ = {};
}

// Collects the sockets of the latest attempt. The sockets of an earlier attempt are closed, since
// the sender has given it up.
Status ResumePoint::Offer(SocketStream socket, const DataHello& hello) {
  const MutexLock lock(mutex_);
  if (refusing_) return RemoteError("the connection that it resumes has failed");
  if (hello.data_sockets != data_sockets_) {
    return RemoteError("it resumes a connection of {} data sockets with {}", data_sockets_,
                       hello.data_sockets);
  }
  if (hello.attempt < attempt_) return RemoteError("a later attempt to resume has begun");
  if (hello.attempt > attempt_) {
    attempt_ = hello.attempt;
    sockets_ = {};
    sockets_.data.resize(data_sockets_);
    sockets_.moved = hello.life == DataHello::kMoves;
    missing_ = data_sockets_ + 1;
  }
  SocketStream& place =
      hello.socket == 0 ? sockets_.control : sockets_.data[hello.socket - size_t{1}];
  if (missing_ == 0 || place.valid()) return RemoteError("socket {} came twice", hello.socket);
  place = std::move(socket);
  if (--missing_ > 0) return Status::Ok();
  offered_.store(true, std::memory_order_release);
  // The shutdown wakes a thread that sleeps on the old sockets. The descriptors are valid, because
  // the comm calls Use before it closes them.
  for (const int fd : in_use_) ::shutdown(fd, SHUT_RDWR);
  return Status::Ok();
}

}  // namespace tutti
