#pragma once

// Set mismatches: one name asked for in several process sets. Sets never wait for one another. When
// a rank asks for "x" in one set and its peers ask for "x" in another, both sets therefore wait,
// and neither can see why. The ranks find out in rounds of the set of all ranks: each rank tells
// its waits in every set, and all draw the same conclusion from the same bytes.
//
// A rank may use a name in two sets, and may be late. A mismatch therefore counts as a mistake only
// when nobody can mend the mismatch any more, which is when
//   - all members of the sets concerned have "x" pending in one of the sets, and "x" is complete in
//     none;
//   - every one of these ranks is stuck: all its threads that ever asked for something are blocked,
//     in waits for tensors that nobody can complete either. Each of them waits for ranks that are
//     themselves waiting;
//   - all ranks have said the same twice. The second statement of each rank comes after the first
//     statement of all, and between the two all statements were thus true at the same moment.
// For a rank that is not stuck (because the rank polls, or another of its threads might ask), the
// mismatch is only a warning. The warning becomes an error when a rank has waited for longer than
// the limit for stalls.
//
// Pure functions and values; one thread at a time.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bootstrap/wire.h"
#include "coordinator/rank_set.h"

namespace tutti::coordinator {

// The waits of ranks in all their sets, of one rank or merged over several. Ranks are ranks of the
// job.
struct SetWaits {
  // Describes one tensor in one process set.
  struct Place {
    RankSet members;  // the ranks of the set
    RankSet have;     // the ranks where the tensor is pending
    RankSet blocked;  // the ranks of `have` with a thread in a wait for the tensor
    RankSet late;     // the ranks of `have` where the wait is longer than the stall window
    RankSet overdue;  // the ranks of `have` where the wait is longer than a stall may last
    // By this round of the set all ranks have been told the pending tensors of the ranks: the
    // latest round that a rank said.
    uint64_t round = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::map<std::string, std::map<int, Place>> places;  // name → number of the set
  // The ranks whose every asking thread is blocked in a wait for a tensor of `places`.
  RankSet stuck;
  // The ranks whose last statement was just the same.
  RankSet same;

  void Merge(const SetWaits& other);
  void Write(WireWriter& writer) const;
  // Returns false for bytes that Write did not write for ranks below `num_ranks`.
  [[nodiscard]] bool Read(WireReader& reader, int num_ranks);
};

// A name that ranks ask for in different process sets.
struct SetMismatch {
  std::string name;
  std::map<int, SetWaits::Place> sets;  // The keys are the sets' numbers.
  std::string sentence;
  enum class Outcome {
    kPossible,  // All have waited for longer than the stall window; nothing is proven.
    kUnproven,  // A mistake, if all ranks say the same again.
    kMistake,   // The tensor fails.
  };
  Outcome outcome = Outcome::kPossible;
};

// Returns the mismatches, by name.
std::vector<SetMismatch> FindSetMismatches(const SetWaits& waits);

}  // namespace tutti::coordinator
