#include "operations/ticket_order.h"

#include "base/clock.h"
#include "base/exceptions.h"
#include "base/long_wait.h"

namespace tutti {
namespace {

// The time after which a waiter checks again whether an operation runs.
constexpr int64_t kLookAgainNs = 100'000'000;

}  // namespace

// Returns once the turn is `ticket` or beyond. The operation that has the turn watches its own
// progress, and therefore only time without a running operation counts here.
Status TicketOrder::Await(uint64_t ticket) {
  const WaitPolicy policy;
  Backoff backoff(policy);
  const auto timeout_ns = static_cast<int64_t>(timeout_s_ * 1e9);
  uint64_t seen = turn_.load(std::memory_order_acquire);
  LongWait idle;
  while (true) {
    const uint64_t turn = turn_.load(std::memory_order_acquire);
    if (turn >= ticket) return Status::Ok();
    if (backoff.Pause()) continue;
    const int64_t now_ns = NowNs();
    if (turn != seen || !idle.begun() || running_.load(std::memory_order_relaxed)) {
      seen = turn;
      idle.Begin(now_ns);
    } else if (idle.Look(now_ns, timeout_ns).over) {
      return Timeout(
          "rank {} issued an operation {:.1f} s ago on a stream that does not get to it, and what "
          "was issued after it cannot run before it",
          rank_, idle.waited_s());
    }
    SleepUntilChanged(turn_, turn, turn_sleepers_, kLookAgainNs);
  }
}

Status TicketOrder::AwaitOrGiveUp(uint64_t ticket) {
  Status status = WithoutExceptions([&] { return Await(ticket); });
  if (!status.ok()) GiveUp(ticket);
  return status;
}

void TicketOrder::Pass(uint64_t ticket) {
  running_.store(false, std::memory_order_relaxed);
  turn_.store(ticket + 1, std::memory_order_release);
  WakeSleepers(turn_, turn_sleepers_);
  // GiveUp counts before reading the turn. Pass reads the count after changing the turn, and
  // WakeSleepers contains the fence. At least one of the two functions therefore sees the other's
  // change.
  if (num_given_up_.load(std::memory_order_relaxed) == 0) return;
  const MutexLock lock(mutex_);
  SkipGivenUp();
}

void TicketOrder::GiveUp(uint64_t ticket) {
  const MutexLock lock(mutex_);
  given_up_.insert(ticket);
  num_given_up_.fetch_add(1, std::memory_order_seq_cst);
  SkipGivenUp();
}

// Only SkipGivenUp moves the turn past a ticket that was given up.
void TicketOrder::SkipGivenUp() {
  uint64_t turn = turn_.load(std::memory_order_seq_cst);
  while (given_up_.erase(turn) == 1) {
    num_given_up_.fetch_sub(1, std::memory_order_relaxed);
    turn_.store(++turn, std::memory_order_release);
    WakeSleepers(turn_, turn_sleepers_);
    turn = turn_.load(std::memory_order_seq_cst);
  }
}

}  // namespace tutti
