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

// The same for ranks that read one another's stages: what one of them lays out and reads.
class StageCounting {
 public:
  constexpr StageCounting(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

  constexpr int rank() const { return rank_; }
  constexpr int num_ranks() const { return num_ranks_; }
  constexpr uint64_t NextRound() { return ++rounds_; }
  constexpr void Stage(uint64_t, size_t, size_t, size_t n) { staged_ += n; }
  constexpr void StageOutput(uint64_t, size_t, size_t, size_t n) { staged_ += n; }
  constexpr void Publish(uint64_t, size_t) {}
  constexpr void Wait(uint64_t, int) {}
  constexpr void ReduceSlots(uint64_t, size_t, size_t, size_t n) { Reduce(n); }
  constexpr void ReducePart(uint64_t, size_t, size_t, size_t, size_t n) { Reduce(n); }
  constexpr void CopyFromSlot(uint64_t, int, size_t, size_t, size_t n) { read_ += n; }
  constexpr void CopyLocal(size_t, size_t, size_t) {}
  constexpr void EndRound(uint64_t) {}

  constexpr uint64_t rounds() const { return rounds_; }
  constexpr uint64_t staged() const { return staged_; }    // elements, for the others
  constexpr uint64_t read() const { return read_; }        // of the others
  constexpr uint64_t reduced() const { return reduced_; }  // results that this rank computes

 private:
  constexpr void Reduce(size_t n) {
    read_ += n * static_cast<size_t>(num_ranks_ - 1);
    reduced_ += n;
  }

  int rank_;
  int num_ranks_;
  uint64_t rounds_ = 0;
  uint64_t staged_ = 0;
  uint64_t read_ = 0;
  uint64_t reduced_ = 0;
};
static_assert(DirectPrimitives<StageCounting>);

}  // namespace tutti::kernels
