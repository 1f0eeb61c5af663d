#pragma once

// Brings a short text of rank 0 to all ranks by what the launcher offers: PMIx or PMI-1.

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "launch/environment.h"

namespace tutti::launch {

// The most bytes that these ways carry.
inline constexpr size_t kMaxSharedBytes = 64 * 1024;

// Every rank calls this once; each gets what rank 0 passed as `value`, and the others' is ignored.
// A process can do so only once, since launchers let a process join and leave once.
Result<std::string> ShareOverPmix(const LaunchInfo& info, std::string_view value,
                                  Deadline deadline);
Result<std::string> ShareOverPmi(const LaunchInfo& info, std::string_view value, Deadline deadline);

}  // namespace tutti::launch
