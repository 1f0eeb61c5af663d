#pragma once

// A reduction for a host kernel: the function for type and operator, and the scaling around it.

#include <cstddef>
#include <cstdint>

#include "base/reduce.h"

namespace tutti {

struct ReduceSpec {
  ReduceFn fn = nullptr;
  uint64_t scalar = 0;   // one element; the factor of every rank's input if `scale`
  bool scale = false;    // PreMulSum, and the average of floats by 1/n
  uint64_t divisor = 0;  // the divisor of the finished result; 0: none
  // Rounds every scaled input to the element's type before the input is combined. A rank then adds
  // the same bits of its own input that its peers receive.
  bool round_scaled = false;

  // Combines `sources` in `dst`. Scales the first if `scale_first`, and divides the result if
  // `final`.
  void Apply(void* dst, const void* const* sources, int num_sources, size_t count, bool scale_first,
             bool final) const {
    ReduceArgs args = {.scalar = scalar, .divisor = final ? divisor : 0};
    if (scale && scale_first) args.scale_end = 1;
    fn(dst, sources, num_sources, count, args);
  }

  // Stores the finished result of all ranks' data in `dst`; sources[r] is the data of rank r.
  // Source `own` is an input before scaling, and the senders have scaled the rest. `dst` may be
  // sources[own]. May change the entry sources[own].
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
