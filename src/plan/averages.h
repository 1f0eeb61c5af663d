#pragma once

// Pure functions that say how an average is taken.

#include "base/narrow_range.h"
#include "plan/algorithm_table.h"

namespace tutti {

// Returns whether an average multiplies every element by 1/n before the sum, rather than divide the
// sum, which rounds once. It does where partial sums are stored as elements and could exceed the
// type although no average does. Operations that are deterministic always divide.
constexpr bool ScalesAverages(DataType type, AddingOrder order) {
  return HasNarrowRange(type) && order != AddingOrder::kRankOrder;
}

}  // namespace tutti
