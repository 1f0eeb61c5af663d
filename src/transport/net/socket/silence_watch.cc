#include "transport/net/socket/silence_watch.h"

#include "base/clock.h"
#include "sys/silence.h"
#include "sys/tcp.h"

namespace tutti {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// How often connections are examined within the time after which a host counts as silent.
constexpr int64_t kLooks = 5;

}  // namespace

Status SilenceWatch::Prepare(int fd) const {
  DoNotPaceWithinHost(fd);
  return ProbeWhenIdle(fd, dead_after_s_);
}

void SilenceWatch::Add(Subject* subject) {
  const MutexLock lock(mutex_);
  subjects_.push_back(subject);
}

void SilenceWatch::Remove(Subject* subject) {
  const MutexLock lock(mutex_);
  std::erase(subjects_, subject);
}

// The timer holds a weak pointer, since the network may end before the timer fires.
void SilenceWatch::Start() {
  if (ticking_.exchange(true)) return;
  loop_.AddTimer(dead_after_s_ * kSecondNs / kLooks, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Tick();
  });
}

// Starts the next timer only if data moved or a subject waits for an answer. ticking_ is stored
// before active_ is read again, as NoteActivity needs it.
void SilenceWatch::Tick() {
  const bool was_active = active_.exchange(false);
  bool awaits_answer = false;
  {
    const MutexLock lock(mutex_);
    const int64_t now_ns = NowNs();
    for (Subject* const subject : subjects_) {
      awaits_answer |= subject->LookForSilence(now_ns, dead_after_s_ * kSecondNs);
    }
  }
  ticking_.store(false);
  if (was_active || awaits_answer || active_.load()) Start();
}

}  // namespace tutti
