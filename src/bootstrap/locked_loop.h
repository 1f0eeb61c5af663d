#pragma once

// LockedLoop: the event loop as the parts of an Endpoint use it. Every callback runs with the
// endpoint's mutex held, and is dropped after the endpoint's end.

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "sys/event_loop.h"

namespace tutti {

class LockedLoop {
 public:
  LockedLoop(EventLoop& loop, Mutex& mutex) : loop_(loop), mutex_(mutex) {}
  // Sets the object whose life bounds the callbacks, and who owns the mutex. REQUIRES: called once,
  // before the other functions.
  void SetOwner(std::weak_ptr<void> owner) { owner_ = std::move(owner); }

  // Returns a callback of any arguments that calls `task` with the mutex held, while the owner
  // lives.
  template <class Task>
  auto Locked(Task task) const {
    return
        [owner = owner_, &mutex = mutex_, task = std::move(task)]<class... Args>(Args&&... args) {
          const std::shared_ptr<void> alive = owner.lock();
          if (!alive) return;
          const MutexLock lock(mutex);
          task(std::forward<Args>(args)...);
        };
  }

  EventLoop& loop() const { return loop_; }
  void Post(EventLoop::Task task) { loop_.Post(Locked(std::move(task))); }
  Status AddFd(int fd, uint32_t epoll_events, EventLoop::FdCallback callback) {
    return loop_.AddFd(fd, epoll_events, Locked(std::move(callback)));
  }
  EventLoop::TimerId AddTimer(int64_t delay_ns, EventLoop::Task task) {
    return loop_.AddTimer(delay_ns, Locked(std::move(task)));
  }
  // Adds a timer that keeps the owner alive until the timer has run or is cancelled.
  EventLoop::TimerId AddKeepingTimer(int64_t delay_ns, EventLoop::Task task) {
    return loop_.AddTimer(delay_ns,
                          [kept = owner_.lock(), run = Locked(std::move(task))] { run(); });
  }
  // Cancels the timer, and sets `timer` to 0.
  void CancelTimer(EventLoop::TimerId& timer) { loop_.CancelTimer(std::exchange(timer, 0)); }

 private:
  EventLoop& loop_;
  Mutex& mutex_;
  std::weak_ptr<void> owner_;
};

}  // namespace tutti
