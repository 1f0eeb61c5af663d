#pragma once

// Says in which order a reduction has to combine the ranks' elements, and whether an algorithm of
// the table keeps this order. A communicator with TUTTI_DETERMINISTIC gives the same bits for every
// size (docs/determinism.md) and uses only algorithms that keep the order. All functions are pure.

#include <cstdint>

#include "base/datatype.h"
#include "plan/algorithm_table.h"
#include "plan/work.h"

namespace tutti {

// Says which order the caller of a reduction needs.
enum class ReductionOrder : uint8_t {
  // Any order. The caller asked for nothing, or no order changes a bit (integers, minimum,
  // maximum).
  kAny,
  // Rank 0 first, then 1, 2, … Partial results may be stored as elements, which hold partial
  // results in full (float32 and float64).
  kByRank,
  // The order of kByRank for elements narrower than the type of accumulation. Partial results must
  // not be stored as elements, because each store would round.
  kByRankRoundedOnce,
};

// Returns the order that a reduction of `type` by `kind` needs on a deterministic communicator.
constexpr ReductionOrder OrderOf(DataType type, ReduceKind kind) {
  const bool chooses = kind == ReduceKind::kMin || kind == ReduceKind::kMax;
  if (!IsFloat(type) || chooses) return ReductionOrder::kAny;
  return SizeOf(type) < 4 ? ReductionOrder::kByRankRoundedOnce : ReductionOrder::kByRank;
}

// Returns whether every algorithm keeps `order` among `num_ranks` ranks. Between two ranks a single
// addition has the same result both ways round.
constexpr bool AllKeepOrder(ReductionOrder order, int num_ranks) {
  return order == ReductionOrder::kAny || (order == ReductionOrder::kByRank && num_ranks <= 2);
}

// Returns whether the algorithm of `row` keeps `order` among `num_ranks` ranks. Recursive doubling
// divides an average after storing the sum, and recursive halving stores a scaled input. Both round
// once more, also between two ranks.
constexpr bool KeepsOrder(const AlgorithmRow& row, ReductionOrder order, int num_ranks) {
  if (AllKeepOrder(order, num_ranks) || row.order == AddingOrder::kRankOrder) return true;
  if (row.order == AddingOrder::kRankOrderStored && order == ReductionOrder::kByRank) return true;
  const bool stores = row.algorithm == Algorithm::kRecursiveDoubling ||
                      row.algorithm == Algorithm::kRecursiveHalving;
  return !stores && num_ranks <= 2;
}

}  // namespace tutti
