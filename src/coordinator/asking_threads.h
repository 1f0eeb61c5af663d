#pragma once

// The threads of a program that use a process set: all askers so far, and the threads in a wait
// without an end. The two sets tell whether the rank is stuck (set_mismatch.h).
//
// One thread at a time: the process set guards it.

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "coordinator/ticket.h"

namespace tutti::coordinator {

// Returns whether the thread of this number lives in this process.
bool ThreadLives(pid_t thread);

class AskingThreads {
 public:
  // Enters the calling thread as an asker.
  void NoteAsking();
  // Enter and remove a wait of the calling thread for the ticket without an end.
  void BeginWait(const Ticket& ticket);
  void EndWait(const Ticket& ticket);

  // Returns all askers so far, but for some ended threads.
  const std::set<pid_t>& askers() const { return askers_; }
  std::set<pid_t> Blocked() const;
  size_t num_waits() const { return waits_.size(); }
  bool IsAwaited(const Ticket& ticket) const {
    return std::any_of(waits_.begin(), waits_.end(),
                       [&](const Wait& wait) { return wait.ticket == &ticket; });
  }

 private:
  struct Wait {
    pid_t thread = 0;
    const Ticket* ticket = nullptr;
  };
  // Above this number of askers, threads that have ended are looked for.
  static constexpr size_t kFewAskers = 64;

  std::set<pid_t> askers_;
  size_t most_askers_ = kFewAskers;
  pid_t last_asker_ = 0;
  std::vector<Wait> waits_;
};

}  // namespace tutti::coordinator
