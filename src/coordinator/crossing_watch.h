#pragma once

// One rank's part in finding names that ranks ask for in different process sets (crossing.h): looks
// into all its sets when the ranks tell one another what they wait for, asks them to when this rank
// is stuck, and tells the sets what came of it.
//
// Checks are counted, so that a verdict that reaches a set through other ranks is known for that of
// a check that this rank has yet to judge (ProcessSet::Judged). Until it has, it says nothing that
// could prove a mistake.
//
// Asking costs a round of the set of all ranks. It is done only where there are other sets, when
// all asking threads have been blocked for a tick, and then in gaps that double.
//
// Threads: any; sets are asked one after another, so no lock of a set may be held.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/crossing.h"
#include "coordinator/process_set.h"

namespace tutti::coordinator {

class CrossingWatch {
 public:
  using Sets = std::vector<std::shared_ptr<ProcessSet>>;
  // `sets` gives those of this rank, by number; `others` whether the job has more than one.
  CrossingWatch(int rank, double window_s, std::function<Sets()> sets, std::function<bool()> others)
      : rank_(rank), window_s_(window_s), sets_(std::move(sets)), others_(std::move(others)) {}

  // What this rank says in a stall check of the set of all ranks.
  CrossWaits LookAround();
  // What came of the check.
  void Judge(const CrossWaits& waits);
  // From time to time. `due`: some set has something that is stalled.
  void Tick(bool due);
  // What this rank does in its sets other than `set`: "" or 'waits for "x" in process set 2 of
  // ...'.
  std::string Elsewhere(int set) const;

 private:
  struct Look {
    CrossWaits waits;
    // By the number of the set and the name: when it was asked for, whether a thread waits.
    std::map<std::pair<int, std::string>, std::pair<uint64_t, bool>> tensors;
    bool stuck = false;
    bool in_other_set = false;  // blocked in a set that is not that of all ranks
    void ProveNothing();
    bool SameAs(const Look& other) const {
      return tensors == other.tensors && stuck == other.stuck;
    }
  };
  Look LookNow() const;
  void Condemn(const Crossing& crossing, uint64_t check);
  void Warn(const Crossing& crossing);
  bool Suspects();

  const int rank_;
  const double window_s_;
  const std::function<Sets()> sets_;
  const std::function<bool()> others_;

  mutable std::mutex mutex_;
  // Checks so far: in each every rank says something, and then judges what all said.
  uint64_t said_ = 0;
  uint64_t judged_ = 0;
  Look last_said_;
  Look last_tick_;
  int64_t ticks_ = 0;     // for which last_tick_ has held
  bool recheck_ = false;  // what was found must be seen twice
  std::map<std::string, int64_t> warned_ns_;
};

}  // namespace tutti::coordinator
