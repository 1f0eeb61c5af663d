#pragma once

// Algorithms for GPUs that have all registered their buffers and mapped the buffers of their peers
// (ncclCommWindowRegister). Nothing is staged. The ranks meet at the beginning and at the end.
// After the first meeting all inputs may be read and all outputs written; after the second meeting
// nobody touches a peer's buffer any more.
//
//   AllReduce       read own part of all inputs ─ reduce ─ write it to all outputs
//   ReduceScatter   the same, to the own output only
//   AllGather       write own input to all outputs
//
// Hosts that read one another's buffers fetch results, whereas GPUs write results to their peers
// (kernels/pull.h). A store across NVLink costs the writer nothing, while between cores a reader
// finds the lines in the writer's cache.

#include "kernels/mesh.h"

namespace tutti::kernels {

template <class P>
concept SymmetricPrimitives = requires(P p, size_t in, size_t out, size_t n, bool to_all) {
  { p.rank() } -> std::convertible_to<int>;
  { p.num_ranks() } -> std::convertible_to<int>;
  p.Meet();                      // waits for all ranks; their earlier writes can then be read
  p.Reduce(in, out, n, to_all);  // all inputs[in…] → all outputs[out…], or the own output (final)
  p.CopyToAll(in, out, n);       // own input[in…] → all outputs[out…]
};

// AllReduce (`to_all`) and ReduceScatter. Parts of an AllReduce begin at multiples of `unit`
// elements, which keeps whole lines aligned. One function serves both, since a reduction is long
// when it is compiled for a GPU.
template <SymmetricPrimitives P>
constexpr void SymmetricReduction(P& p, const MeshShape& shape, bool to_all, size_t unit) {
  const auto n = static_cast<size_t>(p.num_ranks()), me = static_cast<size_t>(p.rank());
  size_t in = me * shape.stride + shape.begin, out = shape.begin, count = shape.count;
  if (to_all) {
    const size_t share = DivUp(DivUp(shape.count, n), unit) * unit;
    in = out = shape.begin + me * share;
    count = ClampChunk(me * share, share, shape.count);
  }
  p.Meet();
  p.Reduce(in, out, count, to_all);
  p.Meet();
}

template <SymmetricPrimitives P>
constexpr void SymmetricAllGather(P& p, const MeshShape& shape) {
  p.Meet();
  p.CopyToAll(shape.begin, static_cast<size_t>(p.rank()) * shape.stride + shape.begin, shape.count);
  p.Meet();
}

}  // namespace tutti::kernels
