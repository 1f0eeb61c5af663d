#pragma once

// Collects the outcomes of work that threads do beside the calling thread. The wait for them is
// bounded. Work on a live communicator bounds itself, because an operation without progress for
// TUTTI_TIMEOUT_S stops its communicator. Work on a stopped communicator waits for nothing, and
// must end within a deadline of the collector's own.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace tutti {

// Any thread may call. The caller and the working threads share the object, because the last thread
// still touches it when the calling thread goes on.
class AsideOutcomes {
 public:
  // A stopped operation ends within milliseconds. A minute also covers a machine that is busy with
  // other work; a longer wait would hide a thread that hangs.
  static constexpr int64_t kEndWithinNs = 60'000'000'000;

  // `has_stopped` returns whether the communicator of a piece of work has stopped. It is called
  // only before Set is called for the piece.
  AsideOutcomes(size_t count, std::function<bool(size_t number)> has_stopped,
                int64_t end_within_ns = kEndWithinNs)
      : has_stopped_(std::move(has_stopped)),
        end_within_ns_(end_within_ns),
        outcomes_(count),
        running_(count) {}

  // Stores the outcome of the piece `number`. Called once for each piece.
  void Set(size_t number, Status outcome) {
    const MutexLock lock(mutex_);
    outcomes_[number] = std::move(outcome);
    if (--running_ == 0) all_set_.NotifyAll();
  }
  // Waits for all outcomes and returns the first failure. Returns Timeout when only work on stopped
  // communicators is left and does not end. The deadline begins anew whenever a live communicator
  // is seen among the rest.
  Status Await() {
    MutexLock lock(mutex_);
    for (Deadline end = Deadline::After(end_within_ns_); running_ > 0;) {
      if (!OnlyStoppedLeft())
        end = Deadline::After(end_within_ns_);
      else if (end.Passed())
        return Timeout("{} batches of a group do not end although their communicators have stopped",
                       running_);
      all_set_.WaitFor(lock, kLookAgain);
    }
    for (std::optional<Status>& outcome : outcomes_)
      if (!outcome->ok()) return std::move(*outcome);
    return Status::Ok();
  }

 private:
  // The waiter looks this often whether communicators have stopped.
  static constexpr auto kLookAgain = std::chrono::milliseconds(20);

  bool OnlyStoppedLeft() const TUTTI_REQUIRES(mutex_) {
    for (size_t number = 0; number < outcomes_.size(); ++number)
      if (!outcomes_[number] && !has_stopped_(number)) return false;
    return true;
  }

  const std::function<bool(size_t)> has_stopped_;
  const int64_t end_within_ns_;
  Mutex mutex_;
  CondVar all_set_;
  std::vector<std::optional<Status>> outcomes_ TUTTI_GUARDED_BY(mutex_);
  size_t running_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
