#pragma once

// Has the ranks that a launcher started meet. Rank 0 listens at the meeting place (environment.h);
// every other rank connects and proves that it holds the job's key (handshake.h). After all have
// come, rank 0 hands each rank its value, a unique id or an address, and the places of all ranks.
// Programs and the Python package meet in the same way.
//
// This is the main header of the module. Its functions own nothing beyond their call; rank 0 runs a
// thread ("tutti-launch") while waiting. Any thread may call them.

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
  std::vector<Place> places;  // each rank's place
};

// Returns after all ranks of the job have called Meet, with rank 0's `value`; the `value` of all
// further ranks is ignored. `value` has at most kMaxValueBytes. InvalidUsage on every rank where
// the ranks would meet over TCP without a secret, unless the job is `insecure`. Fails with Timeout
// at the deadline, in a sentence that names the missing ranks where they can be known, and with
// RemoteError when rank 0 failed. A rank that failed may try again, unless ranks meet by PMI or
// PMIx: a process can join these once, and waiting for them ignores the abort flag.
Result<Meeting> Meet(const LaunchInfo& info, std::string_view value, const WaitLimits& limits);

}  // namespace tutti::launch
