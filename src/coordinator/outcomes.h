#pragma once

// Comparison of outcomes: ranks learn here whether a step that all of them tried went well on all,
// because no rank may go on with a thing that another rank lacks.

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"

namespace tutti::coordinator {

// The first rank that failed, if any: its place in the group, and its sentence.
using FirstFailure = std::optional<std::pair<size_t, std::string>>;

// Returns the first failure of all ranks, the same on all. `gather` as in OperationsGroup.
// `derived`: this rank failed because another rank did, whose sentence is worth more.
Result<FirstFailure> CompareOutcomes(
    const std::function<Status(const void* mine, size_t bytes, void* all)>& gather,
    size_t num_ranks, const Status& mine, bool derived = false);

}  // namespace tutti::coordinator
