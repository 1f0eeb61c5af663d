#pragma once

// A reduction as a host kernel applies it: the function for the type and operator, and the scaling
// around it.

#include <cstddef>
#include <cstdint>

#include "base/reduce.h"

namespace tutti {

struct ReduceSpec {
  ReduceFn fn = nullptr;
  uint64_t scalar = 0;   // One element; every rank's input is multiplied by it when `scale`.
  bool scale = false;    // PreMulSum, and the average of floats by 1/n.
  uint64_t divisor = 0;  // The finished result is divided by it; 0: it is not.
  // A scaled input is rounded to the element's type before it is combined, wherever that happens:
  // what a rank adds of its own is then what it sends to others.
  bool round_scaled = false;

  // Stores `sources` combined in `dst`. Scales the first source when `scale_first`, and divides the
  // result when `final`.
  void Apply(void* dst, const void* const* sources, int num_sources, size_t count, bool scale_first,
             bool final) const {
    ReduceArgs args = {.scalar = scalar, .divisor = final ? divisor : 0};
    if (scale && scale_first) args.scale_end = 1;
    fn(dst, sources, num_sources, count, args);
  }

  // Stores the finished result of all ranks' data in `dst`; sources[r] is that of rank r. Source
  // `own` is an input that has not been scaled yet, the others were scaled by whoever sent them.
  // `dst` may be sources[own]. May change the entry sources[own].
  void Combine(void* dst, const void** sources, int num_sources, int own, size_t count) const {
    ReduceArgs args = {.scalar = scalar, .divisor = divisor};
    if (scale && round_scaled) {
      Apply(dst, sources + own, 1, count, true, false);
      sources[own] = dst;
    } else if (scale) {
      args.scale_begin = own;
      args.scale_end = own + 1;
    }
    fn(dst, sources, num_sources, count, args);
  }
};

}  // namespace tutti
