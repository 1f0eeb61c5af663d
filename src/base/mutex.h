#pragma once

// A mutex, its holder and its condition variable: the standard library's types with clang's
// thread-safety annotations, which the standard library lacks. A member guarded by a mutex is
// marked TUTTI_GUARDED_BY; a function to be called with the mutex held is marked TUTTI_REQUIRES,
// with the mutex not held TUTTI_EXCLUDES. `make checks` has clang prove the marks
// (checks.thread_safety); other compilers do not see them.
//
//   class Counter {
//    public:
//     void Add() {
//       const MutexLock lock(mutex_);
//       ++value_;
//       changed_.NotifyAll();
//     }
//     void AwaitAtLeast(int least) {
//       MutexLock lock(mutex_);
//       while (value_ < least) changed_.Wait(lock);
//     }
//
//    private:
//     Mutex mutex_;
//     CondVar changed_;
//     int value_ TUTTI_GUARDED_BY(mutex_) = 0;
//   };
//
// A condition is looked at in a loop in the function that holds the lock, as above, and not in a
// lambda handed to Wait: the analysis does not see the lock inside a lambda.

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TUTTI_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TUTTI_THREAD_ANNOTATION(x)
#endif

#define TUTTI_CAPABILITY(name) TUTTI_THREAD_ANNOTATION(capability(name))
#define TUTTI_SCOPED_CAPABILITY TUTTI_THREAD_ANNOTATION(scoped_lockable)
#define TUTTI_GUARDED_BY(mutex) TUTTI_THREAD_ANNOTATION(guarded_by(mutex))
#define TUTTI_PT_GUARDED_BY(mutex) TUTTI_THREAD_ANNOTATION(pt_guarded_by(mutex))
#define TUTTI_REQUIRES(...) TUTTI_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define TUTTI_EXCLUDES(...) TUTTI_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define TUTTI_ACQUIRE(...) TUTTI_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define TUTTI_TRY_ACQUIRE(...) TUTTI_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define TUTTI_RELEASE(...) TUTTI_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TUTTI_ASSERT_HELD(mutex) TUTTI_THREAD_ANNOTATION(assert_capability(mutex))
#define TUTTI_RETURN_CAPABILITY(mutex) TUTTI_THREAD_ANNOTATION(lock_returned(mutex))
// For a function whose locking the analysis cannot follow. A comment beside the function says why
// the locking is right.
#define TUTTI_NO_THREAD_SAFETY_ANALYSIS TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace tutti {

class TUTTI_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() TUTTI_ACQUIRE() { mutex_.lock(); }
  void Unlock() TUTTI_RELEASE() { mutex_.unlock(); }
  bool TryLock() TUTTI_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  // Tells the analysis that the calling thread holds the mutex, where the analysis cannot see the
  // lock: in a lambda that runs while its maker holds the mutex. Does nothing at run time.
  void AssertHeld() const TUTTI_ASSERT_HELD(this) {}

 private:
  friend class MutexLock;
  friend class MutexUnlock;
  std::mutex mutex_;
};

// Holds a mutex from its construction to its end, but for the time between Unlock and Lock.
class TUTTI_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) TUTTI_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() TUTTI_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() TUTTI_RELEASE() { lock_.unlock(); }
  void Lock() TUTTI_ACQUIRE() { lock_.lock(); }

 private:
  friend class CondVar;
  std::unique_lock<std::mutex> lock_;
};

// Gives back a mutex that the caller holds, from its construction to its end: for long work in the
// middle of a function that is called with the mutex held.
class TUTTI_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) TUTTI_RELEASE(mutex) : mutex_(mutex.mutex_) {
    mutex_.unlock();
  }
  ~MutexUnlock() TUTTI_RELEASE() { mutex_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  std::mutex& mutex_;
};

// A condition variable. Each wait gives the lock's mutex back while asleep and holds the mutex
// again on return. A wait may also return for no reason, so callers wait in a loop. REQUIRES, of
// every wait: `lock` holds its mutex.
class CondVar {
 public:
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

  void Wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // Returns false when `time` came before a notification.
  template <class Clock, class Duration>
  bool WaitUntil(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& time) {
    return condition_.wait_until(lock.lock_, time) == std::cv_status::no_timeout;
  }
  template <class Rep, class Period>
  bool WaitFor(MutexLock& lock, const std::chrono::duration<Rep, Period>& time) {
    return condition_.wait_for(lock.lock_, time) == std::cv_status::no_timeout;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace tutti
