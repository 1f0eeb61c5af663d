#pragma once

// The instruction sets that the reduction kernels are compiled for. reduce_kernels.h is the only
// source; each reduce_<target>.cc compiles the source into a namespace of its own, and this table
// lists the targets of the running machine. Tests walk the table to show that every target gives
// the same bits; all other code calls FindReduce.

#include <span>

#include "base/datatype.h"
#include "base/reduce.h"

namespace tutti {

struct ReduceTarget {
  const char* name;
  ReduceFn (*find)(DataType type, ReduceKind kind);
};

// Returns the targets that this machine can run, best first. Never empty; valid for ever.
std::span<const ReduceTarget> ReduceTargets();

namespace reduce_baseline {
ReduceFn Find(DataType type, ReduceKind kind);
}
#if defined(__x86_64__)
namespace reduce_avx2 {
ReduceFn Find(DataType type, ReduceKind kind);
}
namespace reduce_avx512 {
ReduceFn Find(DataType type, ReduceKind kind);
}
#endif

}  // namespace tutti
