#pragma once

// The effect of a reduction on the elements of this rank, and on sums. All primitives of rings use
// it (ring_steps.h, channel_two_level.h).

#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

template <class T>
class RingElements {
 public:
  using Sum = Pack<T, 16>;

  // `reduce` must outlive the object.
  TUTTI_HD explicit RingElements(const ReduceArgs& reduce)
      : reduce_(reduce), scalar_(ScalarOf<T>(reduce)) {}

  // Returns whether `n` elements are whole aligned lines without a factor, as nearly all elements
  // of a buffer are. A null pointer counts as aligned.
  TUTTI_HD bool ArePlain(const std::byte* input, const std::byte* output, size_t n) const {
    return n * sizeof(T) % 16 == 0 && !reduce_.scale &&
           reinterpret_cast<uintptr_t>(input) % 16 == 0 &&
           reinterpret_cast<uintptr_t>(output) % 16 == 0;
  }
  // Returns a line of the input with `left` remaining bytes, multiplied if the reduction scales.
  template <bool kPlain>
  TUTTI_HD Line Load(const std::byte* input, size_t left) const {
    if constexpr (kPlain) return LoadLine(input);
    const Line line = LoadAny<16>(input, left);
    return reduce_.scale ? ScaleLine<T, 16>(line, scalar_) : line;
  }
  // Returns the stored elements of a sum; a final sum is divided if the reduction has a divisor.
  TUTTI_HD Line Stored(const Sum& sum, bool is_final) const {
    if (is_final) return FinalLine(reduce_, sum);
    Line line = {};
    sum.To(line.w, reduce_.kind);
    return line;
  }
  // Returns the sum of the elements of two lines; `is_final` as in Stored.
  TUTTI_HD Line Added(const Line& theirs, const Line& mine, bool is_final) const {
    auto sum = Sum::From(theirs.w);
    sum.Combine(reduce_.kind, Sum::From(mine.w));
    return Stored(sum, is_final);
  }

 private:
  const ReduceArgs& reduce_;
  const uint64_t scalar_;
};

}  // namespace tutti::cuda
