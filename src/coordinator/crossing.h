#pragma once

// One name in several process sets. Sets never wait for one another, so a rank that asks for "x" in
// one set while its peers ask for it in another leaves both waiting, and neither set can see why.
// The ranks find out in rounds of the set of all ranks, where each says what it waits for in every
// set, and all draw the same conclusion from the same bytes.
//
// A rank may use one name in two sets, and may be late: what is called a mistake must be past
// mending. It is when
//   - all members of the sets concerned have "x" pending in one of them, and it is complete in
//     none;
//   - every one of them is stuck: all its threads that ever asked for something are blocked, in
//     waits for tensors of which the same holds. Whom each waits for is then itself waiting;
//   - all have said the same twice. Everybody's second word comes after everybody's first, so
//     between the two there was a moment at which all of it was so at once.
// Where ranks are not stuck (they poll, or another thread of theirs might ask), it is only told,
// and becomes an error when one of them has waited for longer than the limit for stalls.
//
// Pure functions and values; one thread at a time.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "bootstrap/wire.h"
#include "coordinator/rank_set.h"

namespace tutti::coordinator {

// What ranks wait for in all their sets: of one rank, or a merge of several. Ranks are those of the
// job.
struct CrossWaits {
  // A tensor in one process set.
  struct Place {
    RankSet members;  // of the set
    RankSet have;     // ranks where it is pending
    RankSet blocked;  // those of them that have a thread in a wait for it
    RankSet late;     // those where it has been pending for longer than the stall window
    RankSet overdue;  // ... and longer than the limit by which stalls end a job
    // Of the set: by this round all of these have been told to the others. The latest that one of
    // the ranks says.
    uint64_t round = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  std::map<std::string, std::map<int, Place>> places;  // name → number of the set
  RankSet stuck;  // ranks whose every asking thread is blocked in a wait for one of these
  RankSet same;   // ranks that said this very same the last time, too

  void Merge(const CrossWaits& other);
  void Write(WireWriter& writer) const;
  // False when the bytes are nothing that Write wrote for ranks below `num_ranks`.
  [[nodiscard]] bool Read(WireReader& reader, int num_ranks);
};

// A name that ranks ask for in different process sets.
struct Crossing {
  std::string name;
  std::map<int, CrossWaits::Place> sets;  // by number
  std::string sentence;
  enum class Verdict {
    kPossible,  // all have waited for longer than the stall window; more cannot be said
    kUnproven,  // a mistake if all say the same again
    kMistake,
  };
  Verdict verdict = Verdict::kPossible;
};

// By name.
std::vector<Crossing> FindCrossings(const CrossWaits& waits);

}  // namespace tutti::coordinator
