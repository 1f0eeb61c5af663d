#include "base/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "base/clock.h"

namespace tutti {
namespace {

// Returns the half of a 64-bit word that a futex looks at: the low half, which every change
// changes.
const uint32_t* LowHalf(const std::atomic<uint64_t>& word) {
  const auto* halves = reinterpret_cast<const uint32_t*>(&word);
  return halves + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? 1 : 0);
}

}  // namespace

void FutexSleep(const std::atomic<uint64_t>& word, uint64_t seen, int64_t timeout_ns) {
  const timespec timeout = {timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  syscall(SYS_futex, LowHalf(word), FUTEX_WAIT, static_cast<uint32_t>(seen), &timeout, nullptr, 0);
}

void FutexWakeAll(const std::atomic<uint64_t>& word) {
  syscall(SYS_futex, LowHalf(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SleepUntilChanged(const std::atomic<uint64_t>& word, uint64_t seen, SleepFlag& sleepers,
                       int64_t timeout_ns) {
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (word.load(std::memory_order_seq_cst) == seen) FutexSleep(word, seen, timeout_ns);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
}

bool Backoff::PauseSlowly() {
  // A look at the clock costs as much as five pauses, so the clock is read once in eight rounds.
  if (rounds_ % 8 != 0 && policy_.spin_ns > 0 && start_ns_ == 0) {
    CpuPause();
    return true;
  }
  const int64_t now_ns = NowNs();
  if (start_ns_ == 0) start_ns_ = now_ns;
  const int64_t waited_ns = now_ns - start_ns_;
  if (waited_ns < policy_.spin_ns) {
    for (int i = 0; i < 8; ++i) CpuPause();
    return true;
  }
  if (waited_ns < policy_.spin_ns + policy_.yield_ns) {
    yielded_ = true;
    sched_yield();
    return true;
  }
  return false;
}

}  // namespace tutti
