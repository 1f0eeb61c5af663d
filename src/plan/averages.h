#pragma once

// Defines how an average is computed. Pure functions.

#include "base/narrow_range.h"
#include "plan/algorithm_table.h"

namespace tutti {

// Returns whether an average multiplies every element by 1/n before the sum. Otherwise the sum is
// divided, with a single rounding. Averages are scaled first where partial sums are stored as
// elements and could exceed the range of the type although the average does not. Deterministic
// operations always divide.
constexpr bool ScalesAverages(DataType type, AddingOrder order) {
  return HasNarrowRange(type) && order != AddingOrder::kRankOrder;
}

}  // namespace tutti
