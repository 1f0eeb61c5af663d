#pragma once

// Lists of cases: each varies one thing over all that it can be, and the rest only as far as that
// is likely to matter.

#include <cstddef>
#include <vector>

#include "conformance/cases.h"

namespace tutti::testing {

std::vector<Collective> AllCollectives();

// Reductions: all types × operators, exact and rounding, in and out of place by turns.
std::vector<Case> EveryTypeAndOperator(int num_ranks, size_t count);
// The same of AllReduce alone.
std::vector<Case> EveryTypeAndOperatorOfAllReduce(size_t count);
// What only moves: all collectives × types.
std::vector<Case> EveryTypeMoved(int num_ranks, size_t count);
// All collectives × counts, in and out of place, for elements of 1, 2, 4 and 8 bytes by turns.
std::vector<Case> EveryCount(int num_ranks, const std::vector<size_t>& counts);
std::vector<Case> EveryRoot(int num_ranks, size_t count);
std::vector<Case> EverySkew(int num_ranks, size_t count);
// The same cases with buffers elsewhere.
std::vector<Case> In(Memory memory, std::vector<Case> cases);
// All collectives once with one long count.
std::vector<Case> Long(int num_ranks, size_t count);

}  // namespace tutti::testing
