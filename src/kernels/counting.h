#pragma once

// Primitives that move nothing and count everything. Running an algorithm's template over them
// tells exactly how many chunks and bytes will pass each connection, so the proxy knows its
// operations before the first byte moves and a plan can be printed, with no second description of
// any algorithm to keep in step.

#include <cstddef>
#include <cstdint>

#include "kernels/primitives.h"

namespace tutti::kernels {

// What passes one direction of the links of a primitives object. Chunks are slots; a step is one
// primitive call.
struct Traffic {
  uint64_t steps = 0;
  uint64_t chunks = 0;
  uint64_t elems = 0;
};

class CountingPrimitives {
 public:
  constexpr explicit CountingPrimitives(size_t slice_elems) : slice_elems_(slice_elems) {}

  constexpr void Send(size_t, size_t n) { Count(sent_, n); }
  constexpr void CopySend(size_t, size_t, size_t n) { Count(sent_, n); }
  constexpr void Recv(size_t, size_t n) { Count(received_, n); }
  constexpr void RecvCopySend(size_t, size_t n) { Both(n); }
  constexpr void RecvReduceSend(size_t, size_t n) { Both(n); }
  constexpr void RecvReduceCopyFinal(size_t, size_t, size_t n) { Count(received_, n); }
  constexpr void RecvReduceCopySendFinal(size_t, size_t, size_t n) { Both(n); }

  constexpr const Traffic& sent() const { return sent_; }
  constexpr const Traffic& received() const { return received_; }

 private:
  constexpr void Count(Traffic& traffic, size_t n) const {
    if (n == 0) return;
    ++traffic.steps;
    traffic.chunks += DivUp(n, slice_elems_);
    traffic.elems += n;
  }
  constexpr void Both(size_t n) {
    Count(sent_, n);
    Count(received_, n);
  }

  size_t slice_elems_;
  Traffic sent_;
  Traffic received_;
};
static_assert(FifoPrimitives<CountingPrimitives>);

}  // namespace tutti::kernels
