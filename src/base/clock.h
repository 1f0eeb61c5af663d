#pragma once

// Monotonic time in nanoseconds, and deadlines made of it.

#include <time.h>

#include <cstdint>
#include <limits>

namespace tutti {

inline int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Returns the same in steps of a tick of the kernel, some milliseconds, at a fifth of the cost: for
// ages of seconds.
inline int64_t CoarseNowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A point in monotonic time after which waiting stops. Copyable; thread-safe.
class Deadline {
 public:
  static Deadline After(int64_t duration_ns) { return Deadline(NowNs() + duration_ns); }
  static Deadline AfterSeconds(double seconds) {
    return After(static_cast<int64_t>(seconds * 1e9));
  }
  static Deadline Never() { return Deadline(std::numeric_limits<int64_t>::max()); }

  bool Passed() const { return at_ns_ != Never().at_ns_ && NowNs() >= at_ns_; }
  int64_t at_ns() const { return at_ns_; }
  // Returns the remaining milliseconds, for poll(2): rounded up, at most `limit_ms`, 0 when passed.
  int RemainingMs(int limit_ms) const {
    if (at_ns_ == Never().at_ns_) return limit_ms;
    const int64_t left_ms = (at_ns_ - NowNs() + 999'999) / 1'000'000;
    if (left_ms <= 0) return 0;
    return left_ms < limit_ms ? static_cast<int>(left_ms) : limit_ms;
  }

 private:
  explicit Deadline(int64_t at_ns) : at_ns_(at_ns) {}
  int64_t at_ns_;
};

}  // namespace tutti
