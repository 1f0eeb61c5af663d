#pragma once

// Set mismatches: one name asked for in several process sets. Sets never wait for one another, so a
// rank that asks for "x" in one set while its peers ask for it in another leaves both waiting, and
// neither set can see why. The ranks find out in rounds of the set of all ranks, where each says
// what it waits for in every set, and all draw the same conclusion from the same bytes.
//
// A rank may use one name in two sets, and may be late, so what is called a mistake must be past
// mending. It is when
//   - all members of the sets concerned have "x" pending in one of them, and it is complete in
//     none;
//   - every one of these ranks is stuck: all its threads that ever asked for something are blocked,
//     in waits for tensors of which the same holds. Each of them waits for ranks that are
//     themselves waiting;
//   - all ranks have said the same twice. The second statement of each rank comes after the first
//     statement of all, so between the two there was a moment at which all of it was so at once.
// Where a rank is not stuck (it polls, or another thread of it might ask), the mismatch is only a
// warning, and becomes an error when one of the ranks has waited for longer than the limit for
// stalls.
//
// Pure functions and values; one thread at a time.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bootstrap/wire.h"
#include "coordinator/rank_set.h"

namespace tutti::coordinator {

// Says what ranks wait for in all their sets, of one rank or merged over several. Ranks are those
// of the job.
struct SetWaits {
  // Describes one tensor in one process set.
  struct Place {
    RankSet members;  // the ranks of the set
    RankSet have;     // the ranks where the tensor is pending
    RankSet blocked;  // the ranks of `have` that have a thread in a wait for it
    RankSet late;     // the ranks of `have` where it is pending for longer than the stall window
    RankSet overdue;  // the ranks of `have` where it is pending for longer than a stall may last
    // By this round of the set all ranks have been told what is pending here. The latest that one
    // of the ranks says.
    uint64_t round = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::map<std::string, std::map<int, Place>> places;  // name → number of the set
  // The ranks whose every asking thread is blocked in a wait for one of these tensors.
  RankSet stuck;
  // The ranks that said just the same the last time.
  RankSet same;

  void Merge(const SetWaits& other);
  void Write(WireWriter& writer) const;
  // Returns false when the bytes are nothing that Write wrote for ranks below `num_ranks`.
  [[nodiscard]] bool Read(WireReader& reader, int num_ranks);
};

// A name that ranks ask for in different process sets.
struct SetMismatch {
  std::string name;
  std::map<int, SetWaits::Place> sets;  // The keys are the sets' numbers.
  std::string sentence;
  enum class Outcome {
    kPossible,  // All have waited for longer than the stall window; more cannot be said.
    kUnproven,  // It is a mistake if all ranks say the same again.
    kMistake,   // The tensor fails.
  };
  Outcome outcome = Outcome::kPossible;
};

// Returns the mismatches, by name.
std::vector<SetMismatch> FindSetMismatches(const SetWaits& waits);

}  // namespace tutti::coordinator
