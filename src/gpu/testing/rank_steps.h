#pragma once

// Runs recorded steps of ranks, each step as soon as possible, for tests of schedules.

#include <cstddef>
#include <vector>

namespace tutti {

// Lets rank after rank do its next step, until all ranks are done or none can go on. `counts` has
// the number of steps of each rank. `try_step(rank, step)` does a step, or returns false where the
// step has to wait. Returns whether all steps are done.
template <class TryStep>
bool RunRankSteps(const std::vector<size_t>& counts, const TryStep& try_step) {
  std::vector<size_t> done(counts.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < counts.size(); ++r) {
      if (done[r] == counts[r] || !try_step(r, done[r])) continue;
      ++done[r];
      moved = true;
    }
  }
  return done == counts;
}
// Returns the number of recorded steps of each rank.
template <class Recorder>
std::vector<size_t> NumSteps(const std::vector<Recorder>& ranks) {
  std::vector<size_t> counts;
  for (const Recorder& rank : ranks) counts.push_back(rank.steps.size());
  return counts;
}

}  // namespace tutti
