#pragma once

// Brings a short text of rank 0 to all ranks by a service of the launcher: PMIx or PMI-1.

#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "launch/environment.h"

namespace tutti::launch {

// The most bytes that PMIx or PMI-1 carries.
inline constexpr size_t kMaxSharedBytes = 64 * 1024;

// Must be called once by every rank. Returns rank 0's `value`; the `value` of all further ranks is
// ignored. A process can call either function only once, since launchers let a process join and
// leave once.
Result<std::string> ShareOverPmix(const LaunchInfo& info, std::string_view value,
                                  Deadline deadline);
Result<std::string> ShareOverPmi(const LaunchInfo& info, std::string_view value, Deadline deadline);

}  // namespace tutti::launch
