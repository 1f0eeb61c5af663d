#pragma once

// A word that others ring and on which one thread sleeps. It may lie in memory that processes
// share; zeroes are one that was never rung.

#include <atomic>
#include <cstdint>

#include "base/wait.h"

namespace tutti {

struct Doorbell {
  alignas(64) std::atomic<uint64_t> rings = 0;
  SleepFlag sleepers = 0;

  // Wakes the sleeper. Called after the change that it is to see, by any thread.
  void Ring() {
    rings.fetch_add(1, std::memory_order_release);
    WakeSleepers(rings, sleepers);
  }
  // Sleeps until a ring beyond `seen`, which was read from `rings` before the look that found
  // nothing, or `timeout_ns`. May return early.
  void SleepBeyond(uint64_t seen, int64_t timeout_ns) {
    SleepUntilChanged(rings, seen, sleepers, timeout_ns);
  }
};

}  // namespace tutti
