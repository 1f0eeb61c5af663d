#pragma once

// The reduction kernels of the host: element-wise combination of any number of source arrays, with the machine's
// vector units chosen at run time. Pure functions; any thread may call them.
//
// f16, bf16 and both fp8 types are widened to f32, combined there over all sources, and rounded once (to nearest
// even). Integer sums and products wrap. A result depends only on the sources and their order, never on the target,
// the alignment or the position of an element in the array, so that ranks that reduce different pieces agree bit
// for bit. min and max of floats propagate NaN.

#include <cstddef>
#include <cstdint>

#include "base/datatype.h"

namespace tutti {

// Scaling around a reduction. `scalar` holds one element of the array's type in its first bytes (PreMulSum);
// source i is multiplied by it before combining when bit i of `scale_mask` is set. A non-zero `divisor` divides
// the result (average of integers: truncates toward zero).
struct ReduceArgs {
  uint64_t scalar = 0;
  uint64_t scale_mask = 0;
  uint64_t divisor = 0;
};

// The most sources that one call combines.
inline constexpr int kMaxReduceSources = 64;

// dst[i] = sources[0][i] op sources[1][i] op … for i < count, left to right. `dst` may be one of the sources
// (the same address), else it must not overlap them. No alignment is required.
// REQUIRES: 1 <= num_sources <= kMaxReduceSources. With one source this is a (scaled, divided) copy.
using ReduceFn = void (*)(void* dst, const void* const* sources, int num_sources, size_t count,
                          const ReduceArgs& args);

// The kernel for a type and operator on this machine. Never null.
ReduceFn FindReduce(DataType type, ReduceKind kind);

// The vector target in use, for logs: "AVX3_SPR", "AVX2", "SCALAR", …
const char* ReduceTargetName();

// The element of `type` nearest to `value`, in the first bytes of the result, for ReduceArgs::scalar.
uint64_t ScalarBits(DataType type, double value);

}  // namespace tutti
