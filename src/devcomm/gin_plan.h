#pragma once

// The part of requirements that asks for device-initiated networking (GIN).

#include "devcomm/requirements.h"

namespace tutti {

// A descriptor names a signal by 24 bits, and a counter by 23.
constexpr uint64_t kMostGinSignals = uint64_t{1} << 24;
constexpr uint64_t kMostGinCounters = uint64_t{1} << 23;

// Counts contexts, signals and counters, and gives barriers and the caller's list theirs. The
// places in the resource window are left to the caller. Errors as PlanResources.
Result<GinPlan> PlanGin(const ncclDevCommRequirements_t& asked, const TeamShape& shape);

}  // namespace tutti
