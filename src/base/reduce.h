#pragma once

// The reduction kernels of the host: element-wise combination of any number of source arrays, with
// the machine's vector units chosen at run time. Pure functions; any thread may call them. They
// assume the floating-point environment a program starts with (round to nearest, subnormals kept).
//
// f16, bf16 and both fp8 types are widened to f32, combined in f32 over all sources, and rounded
// once (to nearest even). fp8 e4m3 is the variant without infinity (NaN is 0x7f and 0xff). A result
// too large for either fp8 type becomes its largest finite number, infinity included, as CUDA's fp8
// types do by default. Integer sums and products wrap.
//
// A result depends only on the sources and their order, never on the target, the alignment or the
// position of an element in the array: ranks that reduce different pieces agree bit for bit. For
// this reason every NaN result is a single pattern per type (float_formats.h; 0x7fc00000 and
// 0x7ff8000000000000 for f32 and f64), and a scaled source is rounded before it is added: to the
// type of the accumulation, which is exact for f16, bf16 and both fp8 types.
//
// min and max of floats propagate NaN and put -0 below +0; without scaling they return one of the
// elements untouched (an infinity in e5m2 stays an infinity), and their result does not depend on
// the order of the sources.

#include <cstddef>
#include <cstdint>

#include "base/datatype.h"

namespace tutti {

// Scaling around a reduction. `scalar` holds an element of the array's type in its first bytes
// (PreMulSum); sources [scale_begin, scale_end) are multiplied by the scalar before they are
// combined. A non-zero `divisor` divides the result: integers truncate toward zero; floats divide
// in the type of the accumulation (f32, or f64 for f64), before the rounding to the element's type.
struct ReduceArgs {
  uint64_t scalar = 0;
  int scale_begin = 0;
  int scale_end = 0;
  uint64_t divisor = 0;
  // The result is a piece of something large that nobody reads soon, and is written past the
  // caches. Results of kPastCacheBytes (copy.h) and more are written past the caches in any case,
  // except in place.
  bool past_cache = false;
};

// dst[i] = sources[0][i] op sources[1][i] op … for i < count, left to right. `dst` may be a source
// (the same address), else it must not overlap them. No alignment is required. REQUIRES:
// num_sources >= 1. A single source is scaled and divided; with neither it is copied unchanged,
// NaNs too.
using ReduceFn = void (*)(void* dst, const void* const* sources, int num_sources, size_t count,
                          const ReduceArgs& args);

// Returns the kernel for a type and operator on this machine. Never null.
ReduceFn FindReduce(DataType type, ReduceKind kind);

// Returns the element of `type` nearest to `value` in the first bytes of the result, for
// ReduceArgs::scalar.
uint64_t ScalarBits(DataType type, double value);

}  // namespace tutti
