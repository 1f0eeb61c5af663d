#include "sys/bounded_listener.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "base/log.h"

namespace tutti {
namespace {

// The most connections accepted in a row: a flood must leave the loop time for its descriptors.
constexpr int kAcceptsAtOnce = 64;
// Pauses until the listener looks for room again, and until it tries again after a failure.
constexpr int64_t kLookAgainNs = 5'000'000;
constexpr int64_t kShortageNs = 100'000'000;
constexpr int kLastingFailures = 5;  // half a second

}  // namespace

Status BoundedListener::Start() {
  return loop_.AddFd(fd_.get(), EPOLLIN, [weak = weak_from_this()](uint32_t) {
    if (const auto self = weak.lock()) self->AcceptSome();
  });
}

void BoundedListener::Close() {
  loop_.CancelTimer(pause_timer_);
  if (fd_.valid()) loop_.RemoveFd(fd_.get());
  fd_.Reset();
  while (!held_.empty()) Take(held_.begin()->first).Reset();
}

void BoundedListener::AcceptSome() {
  for (int i = 0; i < kAcceptsAtOnce && fd_.valid(); ++i) {
    if (!limit_.Admits(kGraceNs)) return Pause(kLookAgainNs);
    SocketAddress from;
    int error = 0;
    Result<UniqueFd> accepted = Accept(fd_.get(), &from, &error);
    if (!accepted.ok()) {
      if (MakeRoom(error)) continue;
      return;
    }
    failures_ = 0;
    if (!accepted->valid()) return;
    Admit(std::move(accepted).value(), from);
  }
}

// Returns whether accepting may succeed now; else the listener pauses.
bool BoundedListener::MakeRoom(int error) {
  if (error == EMFILE || error == ENFILE) {
    if (limit_.ReleaseReserve()) return true;
    if (limit_.FirstHad(kGraceNs) && limit_.CloseFirst()) return true;
    if (limit_.size() > 0) {
      Pause(kLookAgainNs);
      return false;
    }
  }
  if (++failures_ == 1) {
    TUTTI_WARN(
        "{} cannot accept connections for the moment: the process has too many open files "
        "(raise `ulimit -n`) or the host is short of memory",
        options_.name);
  }
  if (failures_ == kLastingFailures && options_.on_shortage) options_.on_shortage();
  Pause(kShortageNs);
  return false;
}

// Without room the listening socket stays readable, and a loop that looked again at once would burn
// a core.
void BoundedListener::Pause(int64_t pause_ns) {
  if (!fd_.valid() || !loop_.ModifyFd(fd_.get(), 0).ok()) return;
  pause_timer_ = loop_.AddTimer(pause_ns, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self || !self->fd_.valid()) return;
    [[maybe_unused]] const Status status = self->loop_.ModifyFd(self->fd_.get(), EPOLLIN);
  });
}

void BoundedListener::Admit(UniqueFd fd, const SocketAddress& from) {
  const Number number = next_++;
  const int raw_fd = fd.get();
  const auto weak = weak_from_this();
  const auto end = [weak, number](std::string_view why) {
    const auto self = weak.lock();
    if (self && self->held_.contains(number)) self->options_.on_over(number, why);
  };
  const auto on_ready = [weak, number](uint32_t) {
    const auto self = weak.lock();
    if (self && self->held_.contains(number)) self->options_.on_ready(number);
  };
  const auto timer = loop_.AddTimer(options_.time_ns, [end] { end("it said too little in time"); });
  const auto place = limit_.Enter([end] { end("too many others wait"); });
  held_.emplace(number, Held{std::move(fd), timer, place});
  if (loop_.AddFd(raw_fd, EPOLLIN, on_ready).ok()) {
    options_.on_connection(number, raw_fd, from);
  } else {
    Drop(number);
  }
}

UniqueFd BoundedListener::Take(Number number) {
  const auto found = held_.find(number);
  if (found == held_.end()) return {};
  loop_.CancelTimer(found->second.timer);
  limit_.Leave(found->second.place);
  loop_.RemoveFd(found->second.fd.get());
  UniqueFd fd = std::move(found->second.fd);
  held_.erase(found);
  return fd;
}

void BoundedListener::Drop(Number number) {
  Take(number).Reset();
  limit_.RestoreReserve();
}

}  // namespace tutti
