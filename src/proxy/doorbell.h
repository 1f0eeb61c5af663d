#pragma once

// A word for a single sleeping thread and any number of ringing threads. The word may lie in memory
// that processes share; zeroes are a doorbell that was never rung.

#include <atomic>
#include <cstdint>

#include "base/wait.h"

namespace tutti {

struct Doorbell {
  alignas(64) std::atomic<uint64_t> rings = 0;
  SleepFlag sleepers = 0;

  // Wakes the sleeper. Called by any thread, after the change that the sleeper is to see.
  void Ring() {
    rings.fetch_add(1, std::memory_order_release);
    WakeSleepers(rings, sleepers);
  }
  // Sleeps until a ring beyond `seen`, or for `timeout_ns`. The caller reads `seen` from `rings`
  // before its last look that finds nothing. May return early.
  void SleepBeyond(uint64_t seen, int64_t timeout_ns) {
    SleepUntilChanged(rings, seen, sleepers, timeout_ns);
  }
};

}  // namespace tutti
