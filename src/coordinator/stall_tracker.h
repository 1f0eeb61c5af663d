#pragma once

// Stalls of one process set: how long pending tensors have waited, when the ranks must be asked for
// their waits, the log's text about a stall, and when a stall ends the job.
//
// The limit that ends the job (stall_shutdown_ns):
//
//   from          condition                                        to            action
//   kWithinLimit  the oldest tensor waits for longer than the      kLastCall     where this rank is
//                 limit                                                          in other sets
//   kWithinLimit  the same                                         kOverdue      where it is not
//   kLastCall     kLastCallNs have passed                          kOverdue
//   any           nothing waits for so long any more               kWithinLimit
//
// In kLastCall the set looks for a mistake that may be the stall's cause: ranks that asked in
// different sets (set_mismatch.h). Such a mistake ends the operations concerned, and not the job.
//
// One thread at a time: the process set guards it.

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/controller.h"
#include "coordinator/name_table.h"

namespace tutti::coordinator {

class StallTracker {
 public:
  struct Options {
    int64_t warn_ns = 0;      // 0: never
    int64_t shutdown_ns = 0;  // 0: never
  };
  enum class State { kWithinLimit, kLastCall, kOverdue };

  // `rank` is this rank's place in `members`, the ranks of the set as those of the job.
  StallTracker(const Options& options, int rank, const std::vector<int>& members)
      : options_(options), rank_(rank), members_(members) {}

  // Notes that something was asked for at this time.
  void NoteAsked(int64_t now_ns) {
    if (oldest_ns_ == 0) oldest_ns_ = now_ns;
  }
  // Sets the time at which the oldest pending tensor was asked for; 0: none is pending.
  void SetOldest(int64_t oldest_ns) { oldest_ns_ = oldest_ns; }
  bool something_waits() const { return oldest_ns_ != 0; }

  // Moves on by the table above.
  State Advance(int64_t now_ns, bool in_other_sets);
  State state() const { return state_; }
  // Returns whether a tensor has been pending for a stall window since the tensor was asked for, or
  // reported.
  bool CheckIsDue(int64_t now_ns, const NameTable& names) const;
  // Returns the time since which a tensor must have been pending to count as late in a check.
  int64_t LateBefore(int64_t now_ns) const {
    return options_.warn_ns > 0 ? now_ns - options_.warn_ns : 0;
  }
  // Returns whether a tensor of this age is late, or overdue, as other ranks are told (SetWaits).
  bool IsLate(int64_t age_ns) const;
  bool IsOverdue(int64_t age_ns) const;

  // Logs the findings of a check. All ranks know them; the lowest of the ranks that wait for a
  // tensor logs them, once a window.
  void Report(const RoundResult& result, NameTable& names);
  // Returns the sentence by which a stall ends the job.
  std::string OverdueText(const NameTable& names) const;
  const std::vector<Stall>& last_stalls() const { return last_stalls_; }

 private:
  const Options options_;
  const int rank_;
  const std::vector<int>& members_;
  State state_ = State::kWithinLimit;
  int64_t last_call_ns_ = 0;  // the beginning of the last call
  int64_t oldest_ns_ = 0;
  std::vector<Stall> last_stalls_;
};

}  // namespace tutti::coordinator
