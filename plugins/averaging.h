#pragma once

// Has what MPI, Gloo and oneCCL have no word for: Tutti's element types and its average. All reduce
// with the library's own kernels, so that results do not depend on what moves the data.

#include <cstddef>
#include <cstdint>

#include "base/copy.h"
#include "base/narrow_range.h"
#include "base/reduce.h"
#include "coordinator/element_type.h"

namespace tutti::coordinator {

inline ReduceFn KernelOf(ncclDataType_t type, ncclRedOp_t op) {
  return FindReduce(static_cast<DataType>(type), KindOf(op));
}

// Returns whether inputs are multiplied by 1/n for an average, instead of dividing the sum, which
// rounds once: where the libraries' partial sums could exceed the type although no average does.
inline bool ScalesInputs(ncclDataType_t type, ncclRedOp_t op) {
  return op == ncclAvg && HasNarrowRange(static_cast<DataType>(type));
}

// Stores what is to be summed, or reduced otherwise, in `to`, which may be `from`.
inline void PrepareInput(const void* from, void* to, size_t count, ncclDataType_t type,
                         ncclRedOp_t op, int num_ranks) {
  if (ScalesInputs(type, op)) {
    KernelOf(type, op)(
        to, &from, 1, count,
        {.scalar = ScalarBits(static_cast<DataType>(type), 1.0 / num_ranks), .scale_end = 1});
  } else if (from != to && count > 0) {
    CopyBytes(to, from, count * WireSize(type));
  }
}

// Divides the finished sum of an average.
inline void FinishOutput(void* data, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int num_ranks) {
  if (op != ncclAvg || ScalesInputs(type, op)) return;
  const void* const source = data;
  KernelOf(type, op)(data, &source, 1, count, {.divisor = static_cast<uint64_t>(num_ranks)});
}

}  // namespace tutti::coordinator
