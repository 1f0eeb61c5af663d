// Reads a guarded member without its mutex, for the self-test of thread_safety. Never built.
#include "base/mutex.h"

class Counter {
 public:
  void Add() {
    const tutti::MutexLock lock(mutex_);
    ++value_;
  }
  int Value() const { return value_; }

 private:
  mutable tutti::Mutex mutex_;
  int value_ TUTTI_GUARDED_BY(mutex_) = 0;
};

int Read(const Counter& counter) { return counter.Value(); }
