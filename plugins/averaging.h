#pragma once

// What MPI, Gloo and oneCCL have no word for: Tutti's element types and its average. All reduce
// with the library's own kernels, so that results do not depend on what moves the data.

#include <cstddef>
#include <cstdint>

#include "base/copy.h"
#include "base/reduce.h"
#include "coordinator/element_type.h"

namespace tutti::coordinator {

inline ReduceFn KernelOf(ncclDataType_t type, ncclRedOp_t op) {
  return FindReduce(static_cast<DataType>(type), KindOf(op));
}

// to[count] = from[count], divided where floats are averaged; `to` may be `from`.
inline void PrepareInput(const void* from, void* to, size_t count, ncclDataType_t type,
                         ncclRedOp_t op, int num_ranks) {
  const auto kind = static_cast<DataType>(type);
  if (op == ncclAvg && IsFloat(kind)) {
    KernelOf(type, op)(to, &from, 1, count,
                       {.scalar = ScalarBits(kind, 1.0 / num_ranks), .scale_end = 1});
  } else if (from != to && count > 0) {
    CopyBytes(to, from, count * WireSize(type));
  }
}

// Divides the finished sum where integers are averaged.
inline void FinishOutput(void* data, size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int num_ranks) {
  if (op != ncclAvg || IsFloat(static_cast<DataType>(type))) return;
  const void* const source = data;
  KernelOf(type, op)(data, &source, 1, count, {.divisor = static_cast<uint64_t>(num_ranks)});
}

}  // namespace tutti::coordinator
