#include "transport/net/socket/resume.h"

#include <poll.h>

#include <cerrno>

#include "base/clock.h"

namespace tutti {

void Redialer::Begin() {
  fd_.Reset();
  next_ns_ = 0;
  stage_ = Stage::kPause;
}

UniqueFd Redialer::Again() {
  fd_.Reset();
  next_ns_ = NowNs() + kBetweenAttemptsNs;
  stage_ = Stage::kPause;
  return {};
}

Result<UniqueFd> Redialer::Step() {
  if (stage_ == Stage::kPause) {
    if (NowNs() < next_ns_) return UniqueFd();
    Result<UniqueFd> started = StartConnect(address_);
    if (!started.ok()) return Again();
    fd_ = std::move(started).value();
    stage_ = Stage::kConnecting;
  }
  if (stage_ == Stage::kConnecting) {
    pollfd writable = {fd_.get(), POLLOUT, 0};
    if (::poll(&writable, 1, 0) <= 0) return UniqueFd();
    const int error = ConnectOutcome(fd_.get());
    // The host answers, and nobody listens there: the peer's process has ended.
    if (error == ECONNREFUSED) return RemoteError("the peer's process has ended");
    if (error != 0) return Again();
    handshake_ = Handshake::Connecting(key_, hello_);
    stage_ = Stage::kProving;
  }
  const Result<Progress> step = handshake_->Step(fd_.get());
  if (!step.ok()) return Again();
  if (*step != Progress::kDone) return UniqueFd();
  stage_ = Stage::kPause;
  return std::move(fd_);
}

}  // namespace tutti
