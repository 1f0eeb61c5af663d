#pragma once

// The shared part of the two forms of FifoPrimitives on GPUs: mesh_ring.h for GPUs that write into
// one another's windows, and channel_ring.h for FIFOs. A set of flags describes a step of an
// algorithm, and one function moves the lines of all steps.

#include "backend/cuda/ring_elements.h"

namespace tutti::cuda {

// The parts of a step.
enum RingStep : uint32_t {
  kReceives = 1,
  kReads = 2,
  kSends = 4,
  kWrites = 8,
  kIsFinal = 16,
};

// Implements the functions of FifoPrimitives (kernels/primitives.h) and of ForwardingPrimitives
// (kernels/rank_order.h) by Self's `void Step(uint32_t what, size_t in, size_t out, size_t n)`.
template <class Self>
class RingSteps {
 public:
  TUTTI_HD void Send(size_t in, size_t n) { self().Step(kReads | kSends, in, 0, n); }
  TUTTI_HD void CopySend(size_t in, size_t out, size_t n) {
    self().Step(kReads | kSends | kWrites, in, out, n);
  }
  TUTTI_HD void Recv(size_t out, size_t n) { self().Step(kReceives | kWrites, 0, out, n); }
  TUTTI_HD void RecvCopySend(size_t out, size_t n) {
    self().Step(kReceives | kSends | kWrites, 0, out, n);
  }
  TUTTI_HD void RecvReduceSend(size_t in, size_t n) {
    self().Step(kReceives | kReads | kSends, in, 0, n);
  }
  TUTTI_HD void RecvSend(size_t n) { self().Step(kReceives | kSends, 0, 0, n); }
  TUTTI_HD void RecvReduceSendFinal(size_t in, size_t n) {
    self().Step(kReceives | kReads | kSends | kIsFinal, in, 0, n);
  }
  TUTTI_HD void RecvReduceCopyFinal(size_t in, size_t out, size_t n) {
    self().Step(kReceives | kReads | kWrites | kIsFinal, in, out, n);
  }
  TUTTI_HD void RecvReduceCopySendFinal(size_t in, size_t out, size_t n) {
    self().Step(kReceives | kReads | kSends | kWrites | kIsFinal, in, out, n);
  }

 private:
  TUTTI_HD Self& self() { return static_cast<Self&>(*this); }
};

// The memory of a step. Unused members are ignored.
struct StepBuffers {
  const std::byte* from;   // the slot with the previous rank's data
  std::byte* to;           // the next rank's slot
  const std::byte* input;  // this rank's elements
  std::byte* output;
  size_t bytes;
};

// Moves the lines of a step with all threads of a block. kPlain is the result of
// RingElements::ArePlain.
template <bool kPlain, class T>
TUTTI_HD void MoveLines(const RingElements<T>& elements, uint32_t what,
                        const StepBuffers& buffers) {
  const auto lines = static_cast<uint32_t>(DivUp(buffers.bytes, 16));
  const uint32_t step = Lanes::count();
  const auto at = [](uint32_t i) { return size_t{16} * i; };
  TUTTI_UNROLL_BY(1)
  for (uint32_t first = Lanes::index(); first < lines; first += step * kUnroll) {
    Line theirs[kUnroll] = {}, mine[kUnroll] = {};
    if ((what & kReceives) != 0) {
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kUnroll; ++u)
        if (first + u * step < lines) theirs[u] = LoadSlot(buffers.from + at(first + u * step));
    }
    if ((what & kReads) != 0) {
      TUTTI_UNROLL
      for (uint32_t u = 0; u < kUnroll; ++u) {
        const uint32_t i = first + u * step;
        if (i < lines)
          mine[u] = elements.template Load<kPlain>(buffers.input + at(i), buffers.bytes - at(i));
      }
    }
    TUTTI_UNROLL
    for (uint32_t u = 0; u < kUnroll; ++u) {
      const uint32_t i = first + u * step;
      if (i >= lines) continue;
      const Line line = (what & kReceives) == 0 ? mine[u]
                        : (what & kReads) == 0
                            ? theirs[u]
                            : elements.Added(theirs[u], mine[u], (what & kIsFinal) != 0);
      if ((what & kSends) != 0) StoreLine(buffers.to + at(i), line);
      if ((what & kWrites) == 0) continue;
      if constexpr (kPlain)
        StoreLine(buffers.output + at(i), line);
      else
        StoreAny<16>(buffers.output + at(i), line, buffers.bytes - at(i));
    }
  }
}
template <class T>
TUTTI_HD void MoveStep(const RingElements<T>& elements, uint32_t what, const StepBuffers& buffers) {
  if (elements.ArePlain((what & kReads) != 0 ? buffers.input : nullptr,
                        (what & kWrites) != 0 ? buffers.output : nullptr,
                        buffers.bytes / sizeof(T)))
    MoveLines<true>(elements, what, buffers);
  else
    MoveLines<false>(elements, what, buffers);
}

// Copies AllGather's own part to the output on its way to the next rank.
template <class P>
class KeepsOwnPart : public RingSteps<KeepsOwnPart<P>> {
 public:
  // `own`: the part's place in the output; `in_place`: the output already contains the part.
  TUTTI_HD KeepsOwnPart(P& p, size_t own, bool in_place) : p_(p), own_(own), in_place_(in_place) {}

 private:
  friend class RingSteps<KeepsOwnPart>;
  TUTTI_HD void Step(uint32_t what, size_t in, size_t out, size_t n) {
    if (what == (kReads | kSends) && !in_place_)
      p_.CopySend(in, own_ + in, n);
    else
      p_.Step(what, in, out, n);
  }

  P& p_;
  const size_t own_;
  const bool in_place_;
};

}  // namespace tutti::cuda
