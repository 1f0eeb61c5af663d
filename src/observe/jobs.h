#pragma once

// Puts the processes of a reading together: the ranks of a communicator that are on this machine,
// and the jobs. Processes with ranks of one communicator are of one job. Pure functions.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "observe/reader.h"
#include "observe/snapshot.h"

namespace tutti::observe {

// A rank of a communicator whose process is, or was, on this machine.
struct RankView {
  int rank = 0;
  ProcessKey process;
  Life life = Life::kUnknown;
  // Nothing where the process has ended and left no board; `life` is then kEnded.
  std::optional<CommunicatorSnapshot> snapshot;
  // The process's activity in other communicators, such as "in collective number 3, … of
  // communicator X"; empty: none.
  std::string elsewhere;
};

struct CommunicatorView {
  uint64_t id = 0;
  std::string name;
  int num_ranks = 0;
  int64_t at_ns = 0;            // the monotonic time of the reading
  std::vector<RankView> ranks;  // in order; ranks of other machines are missing
  std::vector<RankName> names;  // of all ranks, as far as known

  const RankView* Find(int rank) const;
  // Returns the ranks that the library has found to be slow; null: none.
  const SlowSnapshot* slow() const;
  // Returns how many collectives the rank has begun fewer than the rank that is furthest.
  uint64_t Behind(const RankView& one) const;
};

struct JobView {
  int name = 0;        // the smallest process number
  bool alive = false;  // a process has not ended
  std::vector<ProcessSnapshot> processes;
  std::vector<CommunicatorView> communicators;

  bool HasProcess(int pid) const;
};

// Returns the jobs by name, living jobs first. `has_process` says whether this machine has a
// process of a number (folder.h HasProcess); a rank of this host without a process and without a
// board has ended.
std::vector<JobView> FindJobs(const Reading& reading, const std::function<bool(int)>& has_process);

}  // namespace tutti::observe
