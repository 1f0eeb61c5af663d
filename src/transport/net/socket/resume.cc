#include "transport/net/socket/resume.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/clock.h"

namespace tutti {

Redialer::Redialer(const SocketAddress& address, const Key& key, DataHello hello)
    : address_(address), key_(key), hello_(hello) {
  hello_.life = DataHello::kResumes;
}

void Redialer::Begin() { Pause(0); }

// Every attempt begins anew with all sockets.
void Redialer::Pause(int64_t for_ns) {
  sockets_ = {};
  fd_.Reset();
  next_ns_ = NowNs() + for_ns;
  stage_ = Stage::kPause;
  ++hello_.attempt;
  hello_.socket = 0;
}

bool Redialer::StartSocket() {
  Result<UniqueFd> started = StartConnect(address_);
  if (!started.ok()) return false;
  fd_ = std::move(started).value();
  stage_ = Stage::kConnecting;
  return true;
}

Result<std::optional<Sockets>> Redialer::Step() {
  if (stage_ == Stage::kPause) {
    if (NowNs() < next_ns_) return std::optional<Sockets>();
    if (!StartSocket()) Pause(kBetweenAttemptsNs);
  }
  while (stage_ != Stage::kPause) {
    TUTTI_ASSIGN(const bool connected, StepSocket());
    if (!connected) break;
    SocketStream stream =
        SocketStream::Create(std::move(fd_), hello_.sealing, handshake_->session_keys(), true);
    if (hello_.socket == 0) {
      sockets_.control = std::move(stream);
    } else {
      sockets_.data.push_back(std::move(stream));
    }
    if (hello_.socket == hello_.data_sockets) {
      std::optional<Sockets> all = std::move(sockets_);
      Pause(0);
      return all;
    }
    ++hello_.socket;
    if (!StartSocket()) Pause(kBetweenAttemptsNs);
  }
  return std::optional<Sockets>();
}

// Returns true when the socket in turn is connected and has proven the key; a failed attempt leaves
// a pause behind.
Result<bool> Redialer::StepSocket() {
  if (stage_ == Stage::kConnecting) {
    pollfd writable = {fd_.get(), POLLOUT, 0};
    if (::poll(&writable, 1, 0) <= 0) return false;
    const int error = ConnectOutcome(fd_.get());
    // The host answers, and nobody listens there: the peer's process has ended.
    if (error == ECONNREFUSED) return RemoteError("the peer's process has ended");
    if (error != 0) {
      Pause(kBetweenAttemptsNs);
      return false;
    }
    handshake_ = Handshake::Connecting(key_, {Purpose::kData, hello_.Encode()});
    stage_ = Stage::kProving;
  }
  const Result<Progress> step = handshake_->Step(fd_.get());
  const bool proven = step.ok() && *step == Progress::kDone;
  if (!step.ok()) {
    Pause(kBetweenAttemptsNs);
    return false;
  }
  return proven;
}

Result<std::optional<Sockets>> ResumePoint::Step() {
  if (!Offered()) return std::optional<Sockets>();
  const MutexLock lock(mutex_);
  // A later attempt may have begun meanwhile.
  if (!offered_.exchange(false, std::memory_order_acq_rel) || missing_ > 0) {
    return std::optional<Sockets>();
  }
  return std::optional<Sockets>(std::move(sockets_));
}

void ResumePoint::Use(std::vector<int> fds) {
  const MutexLock lock(mutex_);
  in_use_ = std::move(fds);
}

void ResumePoint::Refuse() {
  const MutexLock lock(mutex_);
  refusing_ = true;
  sockets_ = {};
}

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
    missing_ = data_sockets_ + 1;
    offered_.store(false, std::memory_order_release);
  }
  SocketStream& place =
      hello.socket == 0 ? sockets_.control : sockets_.data[hello.socket - size_t{1}];
  if (missing_ == 0 || place.valid()) return RemoteError("socket {} came twice", hello.socket);
  place = std::move(socket);
  if (--missing_ > 0) return Status::Ok();
  offered_.store(true, std::memory_order_release);
  // Wakes whoever sleeps on the old sockets. The comm does not close them before it has called Use.
  for (const int fd : in_use_) ::shutdown(fd, SHUT_RDWR);
  return Status::Ok();
}

}  // namespace tutti
