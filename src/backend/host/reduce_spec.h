#pragma once

// A reduction as a host kernel applies it: the function for the type and operator, and the scaling
// around it.

#include <cstddef>
#include <cstdint>

#include "base/reduce.h"

namespace tutti {

struct ReduceSpec {
  ReduceFn fn = nullptr;
  uint64_t scalar = 0;   // one element; every rank's input is multiplied by it when `scale`
  bool scale = false;    // PreMulSum, and the average of floats (by 1/n)
  uint64_t divisor = 0;  // the average of integers: the finished sum is divided by it; 0: not

  // dst = sources combined. The first source is scaled when `scale_first`; the result divided when
  // `final`.
  void Apply(void* dst, const void* const* sources, int num_sources, size_t count, bool scale_first,
             bool final) const {
    const ReduceArgs args = {scalar, scale && scale_first ? 1u : 0u, final ? divisor : 0};
    fn(dst, sources, num_sources, count, args);
  }
};

}  // namespace tutti
