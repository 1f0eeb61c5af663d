#pragma once

// The order in which a communicator's operations run: one at a time, by the tickets that were taken
// when they were issued, on whatever thread each runs. Any thread may call.

#include <atomic>
#include <cstdint>
#include <set>

#include "base/mutex.h"
#include "base/status.h"
#include "base/wait.h"

namespace tutti {

class TicketOrder {
 public:
  // `rank` is named in errors. A ticket whose turn does not come while nobody runs for `timeout_s`
  // seconds fails with Timeout.
  TicketOrder(int rank, double timeout_s) : rank_(rank), timeout_s_(timeout_s) {}

  // Returns the next ticket.
  uint64_t Take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Waits for the ticket's turn and begins it. After a failure the ticket is given up: no other
  // ticket waits for it any more, and the caller must not call Pass.
  Status Begin(uint64_t ticket) {
    if (turn_.load(std::memory_order_acquire) != ticket) [[unlikely]]
      TUTTI_TRY(AwaitOrGiveUp(ticket));
    running_.store(true, std::memory_order_relaxed);
    return Status::Ok();
  }
  // Ends the turn that Begin has begun and passes it on.
  void Pass(uint64_t ticket);
  // Notes that the ticket will not begin, so that no other one waits for it.
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
  std::atomic<bool> running_ = false;  // The ticket whose turn it is runs.
  Mutex mutex_;
  // The tickets that will not begin. Pass skips them.
  std::set<uint64_t> given_up_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<uint64_t> num_given_up_ = 0;
};

}  // namespace tutti
