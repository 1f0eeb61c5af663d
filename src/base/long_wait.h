#pragma once

// LongWait: the rule of time for every wait for another rank, in collectives and in all other calls
// that ranks make together.
//
//   begun ──every interval──▶ a warning ──at the time-out──▶ the wait is over
//
// The thread that waits looks several times a second. Where two looks lie further apart than
// kStoodStillNs, this process did not run (SIGSTOP, a debugger, a paused virtual machine), and the
// awaited rank may have stood still as well. The wait then begins anew, so a pause of the whole job
// accuses nobody.
//
// A value without clocks, for one thread.

#include <algorithm>
#include <cstdint>

namespace tutti {

class LongWait {
 public:
  // A person notices a job that stands still within this time. A shorter interval would warn of
  // ordinary differences between ranks, such as a checkpoint that one rank writes.
  static constexpr int64_t kWarnEveryNs = 10'000'000'000;
  // The warning precedes the error also where the time-out is short, except with a time-out that
  // leaves no time to read a warning.
  static constexpr int64_t kFewestWarnNs = 500'000'000;
  // Long enough that ordinary skew between ranks causes no question, short enough that a mismatch
  // is shown at once.
  static constexpr int64_t kAskAfterNs = 200'000'000;
  static constexpr int64_t kAskEveryNs = 5'000'000'000;
  // A loaded machine lets a process wait for tenths of a second. With a longer time, a pause just
  // longer than a short time-out would accuse a live rank.
  static constexpr int64_t kStoodStillNs = 1'000'000'000;

  // Says what is due at a look.
  struct Due {
    bool ask = false;          // the awaited rank is to be asked for its activity
    bool warn = false;         // a warning is due
    bool over = false;         // the time-out has come
    bool stood_still = false;  // the wait has begun anew
  };

  // Returns the time between two warnings of a wait with this time-out; 0 stands for no time-out.
  static int64_t WarnInterval(int64_t timeout_ns) {
    return timeout_ns == 0 ? kWarnEveryNs : std::clamp(timeout_ns / 2, kFewestWarnNs, kWarnEveryNs);
  }
  // Returns the time between two questions. With a short time-out the answers must still be fresh
  // when the time-out comes.
  static int64_t AskInterval(int64_t timeout_ns) {
    return timeout_ns == 0 ? kAskEveryNs : std::clamp(timeout_ns / 4, kAskAfterNs, kAskEveryNs);
  }

  void Begin(int64_t now_ns) { since_ns_ = looked_ns_ = asked_ns_ = warned_ns_ = now_ns; }
  void End() { since_ns_ = 0; }
  bool begun() const { return since_ns_ != 0; }
  int64_t since_ns() const { return since_ns_; }

  // Notes a look at the clock, and returns what is due. `timeout_ns` may differ from look to look.
  // REQUIRES: begun().
  Due Look(int64_t now_ns, int64_t timeout_ns) {
    Due due;
    if (now_ns - looked_ns_ > kStoodStillNs) {
      Begin(now_ns);
      due.stood_still = true;
    }
    looked_ns_ = now_ns;
    due.over = timeout_ns > 0 && waited_ns() >= timeout_ns;
    due.warn = Elapsed(warned_ns_, WarnInterval(timeout_ns));
    // The first question comes soon, and the others at the interval.
    due.ask = Elapsed(asked_ns_, asked_ns_ == since_ns_ ? kAskAfterNs : AskInterval(timeout_ns));
    return due;
  }
  // Returns how long the wait had lasted at the last look.
  int64_t waited_ns() const { return looked_ns_ - since_ns_; }
  double waited_s() const { return static_cast<double>(waited_ns()) / 1e9; }

 private:
  bool Elapsed(int64_t& last_ns, int64_t interval_ns) const {
    if (looked_ns_ - last_ns < interval_ns) return false;
    last_ns = looked_ns_;
    return true;
  }

  int64_t since_ns_ = 0;  // 0: not begun
  int64_t looked_ns_ = 0;
  int64_t asked_ns_ = 0;
  int64_t warned_ns_ = 0;
};

}  // namespace tutti
