#pragma once

// Has the ranks that a launcher started meet: rank 0 listens where the others look for it
// (environment.h says where that is), every other rank connects and proves that it holds the job's
// key (handshake.h), and when all have come rank 0 hands each of them its value, which is a unique
// id or an address, and the places of all ranks. There is this way only, for programs and for the
// Python package alike.
//
// This is the main header of the module. Its functions own nothing beyond their call; rank 0 runs a
// thread ("tutti-launch") while it waits. Any thread may call them.

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "launch/environment.h"
#include "launch/meeting_wire.h"
#include "launch/places.h"

namespace tutti::launch {

struct Meeting {
  std::string value;          // rank 0's
  std::vector<Place> places;  // Each rank's place.
};

// Returns when all ranks of the job have called it, with what rank 0 passed as `value`; the others'
// is ignored. `value` has at most kMaxValueBytes. Without a secret the ranks prove only that they
// know the job's name, and rank 0 warns where other machines could reach it. Fails with Timeout at
// the deadline, in a sentence that names the ranks that are missing where that can be known, and
// with RemoteError when rank 0 failed. A rank that failed may try again, unless ranks meet by PMI
// or PMIx, which a process can join once; those do not look at the abort flag.
Result<Meeting> Meet(const LaunchInfo& info, std::string_view value, const WaitLimits& limits);

}  // namespace tutti::launch
