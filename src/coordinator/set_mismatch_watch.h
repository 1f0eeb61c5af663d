#pragma once

// Does one rank's part in finding names that ranks ask for in different process sets
// (set_mismatch.h). Looks into all sets of this rank when the ranks tell one another what they wait
// for, asks them to do so when this rank is stuck, and tells the sets what the ranks concluded.
//
// Checks are counted. A failure that other ranks decided may reach a set of this rank before this
// rank has decided the same check; the count tells (ProcessSet::Decided). Until this rank has
// decided every check in which it spoke, it says nothing that could prove a mistake.
//
// Asking costs a round of the set of all ranks. It is done only where there are other sets, when
// all asking threads have been blocked for a tick, and then in gaps that double.
//
// Threads: any. Sets are asked one after another, so no lock of a set may be held by the caller.

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
  // `sets` gives those of this rank, by number; `others` whether the job has more than one.
  SetMismatchWatch(int rank, double window_s, std::function<Sets()> sets,
                   std::function<bool()> others)
      : rank_(rank), window_s_(window_s), sets_(std::move(sets)), others_(std::move(others)) {}

  // Returns what this rank says in a stall check of the set of all ranks.
  SetWaits CollectWaits();
  // Concludes from what all ranks said in a check, and tells the sets.
  void Decide(const SetWaits& waits);
  // Called from time to time: asks for a check when this rank is stuck, or when `due` says that
  // some set has something that is stalled.
  void Tick(bool due);
  // Returns what this rank does in its sets other than `set`: "" or 'waits for "x" in process set 2
  // of ...'.
  std::string DescribeOtherSets(int set) const;

 private:
  struct Look {
    SetWaits waits;
    // Says for the number of a set and a name when it was asked for, and whether a thread waits.
    std::map<std::pair<int, std::string>, std::pair<uint64_t, bool>> tensors;
    bool stuck = false;
    bool in_other_set = false;  // blocked in a set that is not that of all ranks
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
  // The numbers of checks in which this rank spoke, and that it has decided. In each check every
  // rank speaks, and then decides by what all said.
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
