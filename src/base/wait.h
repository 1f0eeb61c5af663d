#pragma once

// Waits on a word of memory: spins a little, then yields, then sleeps on a futex.
//
// The words may lie in memory shared between processes. A waiter that goes to sleep raises a flag
// next to the word. The thread that changes the word looks at the flag afterwards and wakes the
// sleeper only when the flag is up, so a change without a sleeper costs a fence and a load of a
// line in the cache.

#include <atomic>
#include <cstdint>

namespace tutti {

inline void CpuPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while the low 32 bits of `word` equal those of `seen`, at most `timeout_ns`. May return
// early.
void FutexSleep(const std::atomic<uint64_t>& word, uint64_t seen, int64_t timeout_ns);
// Wakes every sleeper of `word`, in any process that maps it.
void FutexWakeAll(const std::atomic<uint64_t>& word);

// Counts the threads that sleep, or are about to, on the word beside the flag. The flag lies in the
// same memory as the word.
using SleepFlag = std::atomic<uint32_t>;

// Wakes the threads that sleep on `word`. Called after each change of it, by any thread.
inline void WakeSleepers(const std::atomic<uint64_t>& word, SleepFlag& sleepers) {
#if defined(__SANITIZE_THREAD__)  // knows no fences; this orders as well, but takes the line
  const bool asleep = sleepers.fetch_add(0, std::memory_order_seq_cst) != 0;
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);  // the change, before the look at the flag
  const bool asleep = sleepers.load(std::memory_order_relaxed) != 0;
#endif
  if (asleep) [[unlikely]]
    FutexWakeAll(word);
}

// Sleeps until `word` differs from `seen`, a wake-up, or `timeout_ns`. Spurious returns are
// allowed.
void SleepUntilChanged(const std::atomic<uint64_t>& word, uint64_t seen, SleepFlag& sleepers,
                       int64_t timeout_ns);

// Says how long a wait spins and yields before it sleeps.
struct WaitPolicy {
  int64_t spin_ns = 20'000;    // pauses, for a peer that runs on another core
  int64_t yield_ns = 200'000;  // calls sched_yield, for a peer that needs this core
};

// The steps of a wait. Each Pause() is short; false means the time to spin is over and the caller
// should sleep.
class Backoff {
 public:
  explicit Backoff(const WaitPolicy& policy) : policy_(policy) {}

  bool Pause() {
    if (++rounds_ < kFreeRounds) {
      CpuPause();
      return true;
    }
    return PauseSlowly();
  }
  // Returns the time of the first look at the clock, near the begin of the wait; 0 before the look.
  int64_t start_ns() const { return start_ns_; }
  // Returns whether the time to spin is over, and the wait has yielded.
  bool yielded() const { return yielded_; }

 private:
  static constexpr uint32_t kFreeRounds =
      64;  // about 0.3 us: shorter than a look at the clock is worth
  bool PauseSlowly();

  const WaitPolicy& policy_;
  uint32_t rounds_ = 0;
  bool yielded_ = false;
  int64_t start_ns_ = 0;
};

}  // namespace tutti
