#pragma once

// TicketOrder makes a communicator's operations run one at a time, in the order in which their
// tickets were taken, on any threads. Any thread may call.

#include <atomic>
#include <cstdint>
#include <set>

#include "base/mutex.h"
#include "base/status.h"
#include "base/wait.h"

namespace tutti {

class TicketOrder {
 public:
  // `rank` appears in errors. A ticket fails with Timeout if its turn does not come and no
  // operation runs for `timeout_s` seconds.
  TicketOrder(int rank, double timeout_s) : rank_(rank), timeout_s_(timeout_s) {}

  // Returns the next ticket.
  uint64_t Take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Waits for the ticket's turn and begins the turn. After a failure the ticket is given up: later
  // tickets no longer wait for the ticket, and the caller must not call Pass.
  Status Begin(uint64_t ticket) {
    if (turn_.load(std::memory_order_acquire) != ticket) [[unlikely]]
      TUTTI_TRY(AwaitOrGiveUp(ticket));
    running_.store(true, std::memory_order_relaxed);
    return Status::Ok();
  }
  // Ends the ticket's turn and passes the turn to the next ticket.
  void Pass(uint64_t ticket);
  // Notes that the ticket will not begin, and frees later tickets from waiting for the ticket.
  void GiveUp(uint64_t ticket);

  // Returns whether all tickets taken so far have run.
  bool AllHaveRun() const {
    return turn_.load(std::memory_order_acquire) == next_.load(std::memory_order_acquire);
  }
  // Waits until all tickets taken so far have run.
  Status AwaitAll() { return Await(next_.load(std::memory_order_relaxed)); }

 private:
  Status Await(uint64_t ticket);
  Status AwaitOrGiveUp(uint64_t ticket);
  void SkipGivenUp() TUTTI_REQUIRES(mutex_);

  const int rank_;
  const double timeout_s_;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<uint64_t> turn_ = 0;
  SleepFlag turn_sleepers_ = 0;
  std::atomic<bool> running_ = false;  // The ticket with the turn runs.
  Mutex mutex_;
  // The tickets that will not begin. Pass skips them.
  std::set<uint64_t> given_up_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<uint64_t> num_given_up_ = 0;
};

}  // namespace tutti
