#pragma once

// The ring family. Ranks receive from their predecessor and send to their successor; n ranks, a
// chunk each.
//
//   reduce-scatter half             all-gather half
//   step 0    send own view of the chunk that ends at the predecessor …
//   step k    receive a partial sum, add own input, pass it on
//   step n-1  the sum is complete here ──▶ passed on n-1 more times as the result
//
// Each rank moves 2(n-1)/n of the data, the least possible. A chunk is summed in one fixed order,
// and every rank gets the same finished copy of the chunk; results are therefore bit-identical.

#include "kernels/primitives.h"
#include "plan/work.h"

namespace tutti::kernels {

// output = reduction of all inputs. A loop moves num_ranks chunks of chunk_elems.
template <FifoPrimitives P>
constexpr void RingAllReduce(P& p, const RingView& ring, const WorkShape& shape) {
  const auto n = static_cast<size_t>(ring.num_ranks);
  const auto me = static_cast<size_t>(ring.index);
  const size_t loop_elems = n * shape.chunk_elems;
  for (Piece loop(shape.count, loop_elems); loop.More(); loop.Next()) {
    // The last loop is shorter. Its chunks shrink in order that all ranks still have equal work.
    const size_t chunk = DivUp(loop.size(), n);
    const auto offset_of = [&](size_t place) { return loop.offset() + (place % n) * chunk; };
    const size_t end = loop.offset() + loop.size();
    const auto size_of = [&](size_t place) { return ClampChunk(offset_of(place), chunk, end); };

    p.Send(offset_of(me + n - 1), size_of(me + n - 1));
    for (size_t step = 2; step < n; ++step)
      p.RecvReduceSend(offset_of(me + n - step), size_of(me + n - step));
    p.RecvReduceCopySendFinal(offset_of(me), offset_of(me), size_of(me));
    for (size_t step = 1; step < n - 1; ++step)
      p.RecvCopySend(offset_of(me + n - step), size_of(me + n - step));
    p.Recv(offset_of(me + 1), size_of(me + 1));
  }
}

// Gives the offset and the length of each rank's part in the long buffer, in elements.
struct EqualParts {
  size_t count;
  constexpr size_t Offset(int rank) const { return static_cast<size_t>(rank) * count; }
  constexpr size_t Size(int) const { return count; }
  constexpr size_t Longest() const { return count; }
};

// Equal parts in a buffer of longer parts: a channel's share of each part.
struct StridedParts {
  size_t count;
  size_t stride;
  constexpr size_t Offset(int rank) const { return static_cast<size_t>(rank) * stride; }
  constexpr size_t Size(int) const { return count; }
  constexpr size_t Longest() const { return count; }
};

// output[parts of r] = input of rank r. REQUIRES: if in ≠ out, the own part has been copied.
template <FifoPrimitives P, class Parts>
constexpr void RingAllGather(P& p, const RingView& ring, const Parts& parts,
                             const WorkShape& shape) {
  const int n = ring.num_ranks;
  for (Piece piece(parts.Longest(), shape.chunk_elems); piece.More(); piece.Next()) {
    const auto offset_of = [&](int r) { return parts.Offset(r) + piece.offset(); };
    const auto size_of = [&](int r) {
      return ClampChunk(piece.offset(), shape.chunk_elems, parts.Size(r));
    };
    const int me = ring.At(ring.index);
    p.Send(piece.offset(), size_of(me));
    for (int step = 1; step < n - 1; ++step) {
      const int r = ring.At(ring.index - step);
      p.RecvCopySend(offset_of(r), size_of(r));
    }
    const int last = ring.At(ring.index + 1);
    p.Recv(offset_of(last), size_of(last));
  }
}

// output = reduction over ranks of their inputs' part of this rank.
template <FifoPrimitives P, class Parts>
constexpr void RingReduceScatter(P& p, const RingView& ring, const Parts& parts,
                                 const WorkShape& shape) {
  const int n = ring.num_ranks;
  for (Piece piece(parts.Longest(), shape.chunk_elems); piece.More(); piece.Next()) {
    const auto offset_of = [&](int r) { return parts.Offset(r) + piece.offset(); };
    const auto size_of = [&](int r) {
      return ClampChunk(piece.offset(), shape.chunk_elems, parts.Size(r));
    };
    const int first = ring.At(ring.index - 1);
    p.Send(offset_of(first), size_of(first));
    for (int step = 2; step < n; ++step) {
      const int r = ring.At(ring.index - step);
      p.RecvReduceSend(offset_of(r), size_of(r));
    }
    const int me = ring.At(ring.index);
    p.RecvReduceCopyFinal(offset_of(me), piece.offset(), size_of(me));
  }
}

// The ring cut open at the root: a chain. output = root's input.
template <FifoPrimitives P>
constexpr void ChainBroadcast(P& p, const RingView& ring, const WorkShape& shape, bool in_place) {
  const bool is_root = ring.At(ring.index) == shape.root;
  const bool is_last = ring.At(ring.index + 1) == shape.root;
  for (Piece piece(shape.count, shape.chunk_elems); piece.More(); piece.Next()) {
    if (is_root) {
      if (in_place)
        p.Send(piece.offset(), piece.size());
      else
        p.CopySend(piece.offset(), piece.offset(), piece.size());
    } else if (is_last) {
      p.Recv(piece.offset(), piece.size());
    } else {
      p.RecvCopySend(piece.offset(), piece.size());
    }
  }
}

// output at the root = reduction of all inputs.
template <FifoPrimitives P>
constexpr void ChainReduce(P& p, const RingView& ring, const WorkShape& shape) {
  const bool is_root = ring.At(ring.index) == shape.root;
  const bool is_first = ring.At(ring.index - 1) == shape.root;
  for (Piece piece(shape.count, shape.chunk_elems); piece.More(); piece.Next()) {
    if (is_root)
      p.RecvReduceCopyFinal(piece.offset(), piece.offset(), piece.size());
    else if (is_first)
      p.Send(piece.offset(), piece.size());
    else
      p.RecvReduceSend(piece.offset(), piece.size());
  }
}

// One channel's part of a collective round a ring.
struct RingWork {
  RingView ring;
  WorkShape shape;
  size_t stride = 0;      // elements between the parts of the longer buffer
  bool in_place = false;  // a Broadcast's root has its output in its input's buffer
};

// Runs one channel's part of an AllReduce, ReduceScatter or Reduce. `parts` are those of a
// ReduceScatter.
template <FifoPrimitives P, class Parts>
constexpr void RingReduction(P& p, Collective collective, const RingWork& work,
                             const Parts& parts) {
  if (collective == Collective::kAllReduce)
    RingAllReduce(p, work.ring, work.shape);
  else if (collective == Collective::kReduceScatter)
    RingReduceScatter(p, work.ring, parts, work.shape);
  else
    ChainReduce(p, work.ring, work.shape);
}
template <FifoPrimitives P>
constexpr void RingReduction(P& p, Collective collective, const RingWork& work) {
  RingReduction(p, collective, work, StridedParts{work.shape.count, work.stride});
}

// Runs one channel's part of an AllGather or Broadcast. `parts` are those of an AllGather.
template <FifoPrimitives P, class Parts>
constexpr void RingMove(P& p, Collective collective, const RingWork& work, const Parts& parts) {
  if (collective == Collective::kAllGather)
    RingAllGather(p, work.ring, parts, work.shape);
  else
    ChainBroadcast(p, work.ring, work.shape, work.in_place);
}
template <FifoPrimitives P>
constexpr void RingMove(P& p, Collective collective, const RingWork& work) {
  RingMove(p, collective, work, StridedParts{work.shape.count, work.stride});
}

}  // namespace tutti::kernels
