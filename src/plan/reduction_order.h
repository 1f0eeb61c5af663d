#pragma once

// Says in which order a reduction has to combine the ranks' elements, and which algorithms of the
// table do. A communicator that is asked for the same bits whatever the size (TUTTI_DETERMINISTIC,
// docs/determinism.md) uses none but these. Pure functions.

#include <cstdint>

#include "base/datatype.h"
#include "plan/algorithm_table.h"
#include "plan/work.h"

namespace tutti {

// Says what the caller of a reduction needs.
enum class ReductionOrder : uint8_t {
  // Any order: nothing was asked for, or no order changes a bit (integers, minimum, maximum).
  kAny,
  // Rank 0 first, then 1, 2, …; partial results are elements, which hold them in full (float32 and
  // float64).
  kByRank,
  // The same for elements that are narrower than what they are added in: partial results must not
  // be stored as elements, for each storing rounds.
  kByRankRoundedOnce,
};

// Returns what a reduction of `type` by `kind` needs on a communicator that is deterministic.
constexpr ReductionOrder OrderOf(DataType type, ReduceKind kind) {
  const bool chooses = kind == ReduceKind::kMin || kind == ReduceKind::kMax;
  if (!IsFloat(type) || chooses) return ReductionOrder::kAny;
  return SizeOf(type) < 4 ? ReductionOrder::kByRankRoundedOnce : ReductionOrder::kByRank;
}

// Returns whether every algorithm combines the elements in that order among so many ranks: between
// two ranks there is one addition, which has the same result both ways round.
constexpr bool AllKeepOrder(ReductionOrder order, int num_ranks) {
  return order == ReductionOrder::kAny || (order == ReductionOrder::kByRank && num_ranks <= 2);
}

// Returns whether the algorithm combines the elements in that order among so many ranks. Recursive
// doubling divides an average after it has stored the sum, and recursive halving stores an input
// that it has scaled: each rounds once more, also between two ranks.
constexpr bool KeepsOrder(const AlgorithmRow& row, ReductionOrder order, int num_ranks) {
  if (AllKeepOrder(order, num_ranks) || row.order == AddingOrder::kRankOrder) return true;
  if (row.order == AddingOrder::kRankOrderStored && order == ReductionOrder::kByRank) return true;
  const bool stores = row.algorithm == Algorithm::kRecursiveDoubling ||
                      row.algorithm == Algorithm::kRecursiveHalving;
  return !stores && num_ranks <= 2;
}

}  // namespace tutti
