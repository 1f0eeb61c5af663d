#pragma once

// Monotonic time in steps of a tick of the kernel, some milliseconds, at a fifth of the cost of
// NowNs (base/clock.h): for ages of seconds.

#include <time.h>

#include <cstdint>

namespace tutti::coordinator {

inline int64_t CoarseNowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace tutti::coordinator
