#include "transport/net/socket/redialer.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <numeric>

#include "base/clock.h"

namespace tutti {

Redialer::Redialer(SocketPaths paths, const Key& key, const DataHello& hello)
    : paths_(std::move(paths)), key_(key), hello_(hello), in_use_(paths_.Spread()) {
  for (const size_t path : in_use_) paths_.NoteReached(path);
}

void Redialer::Begin(int silent_socket) {
  broken_ = true;
  // The receiver may have all sockets of a trial already, and have left the old sockets for them.
  if (trial_ && silent_socket < 0) return;
  trial_.reset();
  paths_.BeginTries();
  if (silent_socket >= 0) paths_.GiveUp(in_use_[static_cast<size_t>(silent_socket)], NowNs());
  Pause(0);
}

// Prepares another attempt, which begins after `for_ns`. The sockets of the failed attempt are
// dropped here; the receiver drops its own when it sees the higher number of the attempt. A path on
// trial is connected first, since nothing else is lost when the path does not work.
void Redialer::Pause(int64_t for_ns) {
  Abandon();
  sockets_.data.resize(hello_.data_sockets);
  next_ns_ = NowNs() + for_ns;
  stage_ = Stage::kPause;
  ++hello_.attempt;
  hello_.life = trial_ ? DataHello::kMoves : DataHello::kResumes;
  path_of_ = paths_.Spread(trial_);
  order_.resize(path_of_.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_partition(order_.begin(), order_.end(),
                        [this](size_t socket) { return path_of_[socket] == trial_; });
  turn_ = 0;
}

void Redialer::Abandon() {
  if (fd_.valid()) ResetConnection(fd_.get());
  fd_.Reset();
  if (sockets_.control.valid()) sockets_.control.Reset();
  for (SocketStream& stream : sockets_.data)
    if (stream.valid()) stream.Reset();
  sockets_ = {};
}

// Returns whether a trial of a lost path is under way, and begins a trial that is due.
bool Redialer::TriesPath(int64_t now_ns) {
  if (stage_ != Stage::kIdle) return true;
  trial_ = paths_.Due(now_ns);
  if (!trial_) return false;
  paths_.BeginTries();
  Pause(0);
  return true;
}

void Redialer::StartSocket() {
  paths_.NoteTry(Path(), NowNs());
  hello_.socket = static_cast<uint16_t>(socket_in_turn());
  Result<UniqueFd> started = StartConnect(paths_.address(Path()));
  fd_ = started.ok() ? std::move(started).value() : UniqueFd();
  stage_ = Stage::kConnecting;
  was_answered_ = false;
}

// Makes the sockets of an attempt one after another. Returns them when all have proven the key,
// nothing while the attempt waits, and an error where no further attempt can succeed.
Result<std::optional<Sockets>> Redialer::Step() {
  if (stage_ == Stage::kIdle || (stage_ == Stage::kPause && NowNs() < next_ns_)) {
    return std::optional<Sockets>();
  }
  if (stage_ == Stage::kPause) StartSocket();
  for (;;) {
    TUTTI_ASSIGN(const Outcome outcome, StepSocket());
    if (outcome != Outcome::kProven) {
      const int64_t now_ns = NowNs();
      const bool failed = outcome == Outcome::kFailed || paths_.IsHopeless(Path(), now_ns);
      if (failed) TUTTI_TRY(FailAttempt(now_ns));
      return std::optional<Sockets>();
    }
    TakeSocket();
    if (IsLast()) return std::optional<Sockets>(Finish());
    ++turn_;
    StartSocket();
  }
}

// Advances one socket: waits for the connect, then proves the key. Never blocks.
Result<Redialer::Outcome> Redialer::StepSocket() {
  if (!fd_.valid()) return Outcome::kFailed;
  if (stage_ == Stage::kConnecting) {
    pollfd writable = {fd_.get(), POLLOUT, 0};
    if (::poll(&writable, 1, 0) <= 0) return Outcome::kWaits;
    const int error = ConnectOutcome(fd_.get());
    // The host answers, but nobody listens at the port: the peer's process has ended. At an address
    // where the peer was never reached, the answer may come from another host.
    if (error == ECONNREFUSED && paths_.WasReached(Path())) {
      return RemoteError("the peer's process has ended");
    }
    if (error != 0) return Outcome::kFailed;
    handshake_ = Handshake::Connecting(key_, {Purpose::kData, hello_.Encode()});
    stage_ = Stage::kProving;
  }
  const Result<Progress> step = handshake_->Step(fd_.get());
  if (!step.ok()) return Outcome::kFailed;
  was_answered_ |= *step != Progress::kIdle;
  return *step == Progress::kDone ? Outcome::kProven : Outcome::kWaits;
}

void Redialer::TakeSocket() {
  paths_.NoteReached(Path());
  SocketStream stream = SocketStream::Create(handshake_->Seal(std::move(fd_)), hello_.sealing);
  handshake_.reset();
  const size_t number = socket_in_turn();
  (number == 0 ? sockets_.control : sockets_.data[number - 1]) = std::move(stream);
}

// Handles a failed attempt. An attempt to resume is repeated, by other paths where this path is
// hopeless. A trial is given up, unless the old sockets broke meanwhile. If the receiver may have
// taken the new sockets already, the old sockets cannot be used any more.
Status Redialer::FailAttempt(int64_t now_ns) {
  const bool may_have_moved = MayHaveMoved();
  if (!trial_) {
    const bool hopeless = paths_.IsHopeless(Path(), now_ns);
    if (hopeless) paths_.GiveUp(Path(), now_ns);
    Pause(hopeless ? 0 : kBetweenAttemptsNs);
    return Status::Ok();
  }
  paths_.Postpone(*trial_, now_ns);
  trial_.reset();
  if (broken_) {
    Begin(-1);
    return Status::Ok();
  }
  Abandon();
  stage_ = Stage::kIdle;
  if (may_have_moved) return RemoteError("the receiver may have left the sockets for new ones");
  return Status::Ok();
}

// All sockets of the attempt have proven the key, hence a path on trial works again.
Sockets Redialer::Finish() {
  if (trial_) paths_.Restore(*trial_);
  trial_.reset();
  in_use_ = path_of_;
  stage_ = Stage::kIdle;
  broken_ = false;
  return std::move(sockets_);
}

}  // namespace tutti
