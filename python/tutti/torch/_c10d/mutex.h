// SPDX-License-Identifier: Apache-2.0
#pragma once

// A mutex, its holder and its condition variable, like the classes of src/base/mutex.h, which an
// installed package does not have: a guarded member names its mutex, and clang proves the locking
// (tools/checks/thread_safety). Further compilers see no annotations.

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TUTTI_C10D_ANNOTATION(x) __attribute__((x))
#else
#define TUTTI_C10D_ANNOTATION(x)
#endif

#define TUTTI_GUARDED_BY(mutex) TUTTI_C10D_ANNOTATION(guarded_by(mutex))
#define TUTTI_REQUIRES(mutex) TUTTI_C10D_ANNOTATION(requires_capability(mutex))

namespace tutti_c10d {

class TUTTI_C10D_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex from its construction to its end.
class TUTTI_C10D_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TUTTI_C10D_ANNOTATION(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() TUTTI_C10D_ANNOTATION(release_capability()) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// A condition variable. Wait may also return for no reason, and callers wait in a loop.
class CondVar {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }
  void Wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // Returns false when the time has come.
  bool WaitUntil(MutexLock& lock, std::chrono::steady_clock::time_point until) {
    return condition_.wait_until(lock.lock_, until) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace tutti_c10d
