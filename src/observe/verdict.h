#pragma once

// Judges a communicator from two readings of its ranks: who holds the others up, and why. A pure
// function of the readings, whether the job runs, hangs or has died.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/jobs.h"

namespace tutti::observe {

enum class Finding {
  kNothingWrong,
  kOnlySlow,        // operations go on, but ranks wait long for another rank
  kDead,            // the process of a rank has ended
  kOtherSignature,  // ranks have called different operations as the same number
  kStopped,         // the process of a rank is stopped (SIGSTOP, a debugger)
  kFailed,          // the library has stopped the communicator, for a reason that it tells
  kNeverEntered,    // a rank has not called the operation in which the others wait
  kNotLeft,         // all ranks have entered an operation, and some do not leave it
  kNotMoved         // all ranks are in the operation and wait for one another's data
};

struct Verdict {
  Finding finding = Finding::kNothingWrong;
  std::vector<int> culprits;  // the ranks that hold the others up, where that is known
  std::string sentence;
  int64_t since_ns = 0;  // monotonic time since when ranks wait; 0: unknown, or nobody waits

  // Returns whether the job needs help.
  bool IsTrouble() const {
    return finding != Finding::kNothingWrong && finding != Finding::kOnlySlow;
  }
};

// Returns a word such as "never-entered".
std::string_view Name(Finding finding);

// Judges `now`. `earlier` is the same communicator in a reading of some tenths of a second before.
// A rank that has done anything between the two readings is not held up. Ranks that wait for less
// than `patience_ns` are not held up either.
Verdict Judge(const CommunicatorView& earlier, const CommunicatorView& now, int64_t patience_ns);

// Returns whether a rank waits without having done anything since `earlier`: the reader then looks
// again until the wait has lasted for its patience.
bool AnyHeldUp(const CommunicatorView& earlier, const CommunicatorView& now);

}  // namespace tutti::observe
