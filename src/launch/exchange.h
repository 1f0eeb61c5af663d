#pragma once

// How a value of rank 0 (a unique id, an address) reaches all ranks of a launched job, by whatever
// the launcher offers: PMIx, PMI-1 or a TCP address.

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "launch/environment.h"

namespace tutti::launch {

// The most bytes that BroadcastFromRankZero carries.
inline constexpr size_t kMaxBroadcastBytes = 64 * 1024;

// Every rank calls this once; each gets what rank 0 passed as `value` (the others' is ignored). A
// process can do so only once, since launchers let a process join and leave once. `lookup` is what
// ReadLaunchEnvironment was given. Over TCP the ranks prove to each other that they hold
// TUTTI_COMM_KEY; without it they prove only that they belong to the same job. Errors are
// sentences that name the ranks that are missing where that can be known.
Result<std::string> BroadcastFromRankZero(const LaunchInfo& info, const Lookup& lookup,
                                          std::string_view value, Deadline deadline);

}  // namespace tutti::launch
