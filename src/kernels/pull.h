#pragma once

// Algorithms for host ranks that can read one another's user buffers. No byte is staged: every rank
// reads its data in place. Barriers say when a buffer may be read and when it may be touched again.
//
//   enter (all know all buffers) ─ read / reduce ─ [ready ─ fetch the others' results] ─ leave
//
// The primitives (PullPrimitives below) know how to reach a peer's memory: in the same address
// space, by a mapping, or by a copy of the kernel.

#include "kernels/primitives.h"
#include "kernels/ring.h"
#include "plan/work.h"

namespace tutti::kernels {

template <class P>
concept PullPrimitives = requires(P p, int peer, size_t from, size_t out, size_t n) {
  { p.rank() } -> std::convertible_to<int>;
  { p.num_ranks() } -> std::convertible_to<int>;
  p.CopyInput(peer, from, out, n);   // input[from…] of `peer`, or of this rank → output[out…]
  p.CopyOutput(peer, from, out, n);  // peer's output[from…] → output[out…]
  p.ReduceInputs(from, out, n);  // all ranks' inputs[from…], in rank order → output[out…] (final)
  p.Barrier();                   // all earlier calls are done on all ranks
};

// Each rank reduces one part of a piece and fetches the remaining parts. Pieces keep a rank's
// results in the caches until its peers have read them. In place is safe: part r of any input is
// read by rank r only, before rank r reports that its part is ready.
template <PullPrimitives P>
constexpr void PullAllReduce(P& p, const WorkShape& shape) {
  const auto n = static_cast<size_t>(p.num_ranks());
  for (Piece piece(shape.count, n * shape.chunk_elems); piece.More(); piece.Next()) {
    const size_t part = DivUp(piece.size(), n);
    const auto at = [&](int rank) { return static_cast<size_t>(rank) * part; };
    const auto size = [&](int rank) { return ClampChunk(at(rank), part, piece.size()); };
    const size_t mine = piece.offset() + at(p.rank());
    p.ReduceInputs(mine, mine, size(p.rank()));
    p.Barrier();
    for (int i = 1; i < p.num_ranks(); ++i) {
      const int peer = (p.rank() + i) % p.num_ranks();
      p.CopyOutput(peer, piece.offset() + at(peer), piece.offset() + at(peer), size(peer));
    }
  }
  p.Barrier();
}

template <PullPrimitives P, class Parts>
constexpr void PullReduceScatter(P& p, const Parts& parts) {
  p.ReduceInputs(parts.Offset(p.rank()), 0, parts.Size(p.rank()));
  p.Barrier();
}

template <PullPrimitives P, class Parts>
constexpr void PullAllGather(P& p, const Parts& parts) {
  for (int i = 0; i < p.num_ranks(); ++i) {
    const int peer = (p.rank() + i) % p.num_ranks();
    p.CopyInput(peer, 0, parts.Offset(peer), parts.Size(peer));
  }
  p.Barrier();
}

template <PullPrimitives P>
constexpr void PullBroadcast(P& p, const WorkShape& shape) {
  p.CopyInput(shape.root, 0, 0, shape.count);
  p.Barrier();
}

template <PullPrimitives P>
constexpr void PullReduce(P& p, const WorkShape& shape) {
  if (p.rank() == shape.root) p.ReduceInputs(0, 0, shape.count);
  p.Barrier();
}

// AlltoAll. Input and output must not overlap.
template <PullPrimitives P>
constexpr void PullAlltoAll(P& p, const WorkShape& shape) {
  const EqualParts parts{shape.count};
  for (int i = 0; i < p.num_ranks(); ++i) {
    const int peer = (p.rank() + i) % p.num_ranks();
    p.CopyInput(peer, parts.Offset(p.rank()), parts.Offset(peer), shape.count);
  }
  p.Barrier();
}

template <PullPrimitives P>
constexpr void PullGather(P& p, const WorkShape& shape) {
  const EqualParts parts{shape.count};
  if (p.rank() == shape.root)
    for (int peer = 0; peer < p.num_ranks(); ++peer)
      p.CopyInput(peer, 0, parts.Offset(peer), shape.count);
  p.Barrier();
}

template <PullPrimitives P>
constexpr void PullScatter(P& p, const WorkShape& shape) {
  p.CopyInput(shape.root, EqualParts{shape.count}.Offset(p.rank()), 0, shape.count);
  p.Barrier();
}

}  // namespace tutti::kernels
