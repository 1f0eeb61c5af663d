#pragma once

// Tutti's element types and its average, which MPI, Gloo and oneCCL lack. All three plugins reduce
// with Tutti's own kernels, hence results do not depend on the library that moves the data.

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

// Returns whether an average multiplies inputs by 1/n, instead of dividing the sum, which rounds
// only once. Multiplication is necessary where the libraries' partial sums could exceed the type
// although no average does.
inline bool ScalesInputs(ncclDataType_t type, ncclRedOp_t op) {
  return op == ncclAvg && HasNarrowRange(static_cast<DataType>(type));
}

// Stores the input of the reduction in `to`, which may be `from`.
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
