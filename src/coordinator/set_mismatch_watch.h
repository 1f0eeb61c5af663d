#pragma once

// One rank's part in finding names that ranks ask for in different process sets (set_mismatch.h).
// The watch looks into all sets of this rank when the ranks tell one another their waits, asks for
// such a check when this rank is stuck, and tells the sets the conclusions.
//
// Checks are counted. A failure that other ranks decided may reach a set of this rank before this
// rank has decided the same check; the count tells (ProcessSet::Decided). Until this rank has
// decided every check in which the rank spoke, the rank says nothing that could prove a mistake.
//
// A check costs a round of the set of all ranks. Checks are made only where the job has several
// sets, when all asking threads have been blocked for a tick, and then in gaps that double.
//
// Threads: any. Sets are asked one after another, and the caller may hold no lock of a set.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/process_set.h"
#include "coordinator/set_mismatch.h"

namespace tutti::coordinator {

class SetMismatchWatch {
 public:
  using Sets = std::vector<std::shared_ptr<ProcessSet>>;
  // `sets` gives the sets of this rank, by number; `others` whether the job has more than one set.
  SetMismatchWatch(int rank, double window_s, std::function<Sets()> sets,
                   std::function<bool()> others)
      : rank_(rank), window_s_(window_s), sets_(std::move(sets)), others_(std::move(others)) {}

  // Returns the statement of this rank in a stall check of the set of all ranks.
  SetWaits CollectWaits();
  // Concludes from the statements of all ranks in a check, and tells the sets.
  void Decide(const SetWaits& waits);
  // Called from time to time: asks for a check when this rank is stuck, or when `due` says that a
  // set has a stalled tensor.
  void Tick(bool due);
  // Returns the activity of this rank in its sets apart from `set`: "" or 'waits for "x" in process
  // set 2 of ...'.
  std::string DescribeOtherSets(int set) const;

 private:
  struct Look {
    SetWaits waits;
    // For the number of a set and a name: when the tensor was asked for, and whether a thread
    // waits.
    std::map<std::pair<int, std::string>, std::pair<uint64_t, bool>> tensors;
    bool stuck = false;
    bool in_other_set = false;  // blocked in a set apart from the set of all ranks
    void ProveNothing();
    bool SameAs(const Look& other) const {
      return tensors == other.tensors && stuck == other.stuck;
    }
  };
  Look LookNow() const;
  void AddPendingFailure(const SetMismatch& mismatch, uint64_t check);
  void Warn(const SetMismatch& mismatch);
  bool Suspects();

  const int rank_;
  const double window_s_;
  const std::function<Sets()> sets_;
  const std::function<bool()> others_;

  mutable Mutex mutex_;
  // The numbers of the last check in which this rank spoke, and of the last check that the rank has
  // decided. In each check every rank speaks, and then decides by the statements of all.
  uint64_t said_ TUTTI_GUARDED_BY(mutex_) = 0;
  uint64_t decided_ TUTTI_GUARDED_BY(mutex_) = 0;
  Look last_said_ TUTTI_GUARDED_BY(mutex_);
  Look last_tick_ TUTTI_GUARDED_BY(mutex_);
  // The number of ticks for which last_tick_ has held.
  int64_t ticks_ TUTTI_GUARDED_BY(mutex_) = 0;
  // Says whether a mismatch was found that must be seen twice.
  bool recheck_ TUTTI_GUARDED_BY(mutex_) = false;
  std::map<std::string, int64_t> warned_ns_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::coordinator
