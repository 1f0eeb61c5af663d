#pragma once

// Reductions over FIFOs that add elements in the order of the ranks (plan/reduction_order.h).
// Partial sums go along a chain from rank 0 to the last rank, which completes them. From the last
// rank the sums go on round the ring of rank numbers to the ranks that want them.
//
//   0 ─ x0 ─▶ 1 ─ x0+x1 ─▶ 2 ─ x0+x1+x2 ─▶ 3 ─ sum ─▶ 0 ─ sum ─▶ 1 ─ sum ─▶ 2
//
// Parts and sums share one FIFO, in an order that both ends know. A rank takes the sum of a piece
// `lag` pieces after it has passed on its part of the piece, hence the chain is never empty.
//
// REQUIRES, for every function of this file: the last rank can send `lag` sums before rank 0 has
// taken any of them. The requirement excludes deadlock: data from rank 0 reach the last rank
// without its help.

#include <cstddef>

#include "kernels/ring.h"
#include "plan/work.h"

namespace tutti::kernels {

// Primitives for reductions that pass sums on without keeping them.
template <class P>
concept ForwardingPrimitives = FifoPrimitives<P> && requires(P p, size_t in, size_t n) {
  p.RecvSend(n);                 // peer → peers
  p.RecvReduceSendFinal(in, n);  // peer + input → peers
};

// The pieces of several equal parts, part by part.
class PartPieces {
 public:
  // REQUIRES: count > 0.
  constexpr PartPieces(int parts, size_t count, size_t piece_elems)
      : parts_(parts), count_(count), piece_elems_(piece_elems), piece_(count, piece_elems) {}
  constexpr bool More() const { return part_ < parts_; }
  constexpr void Next() {
    piece_.Next();
    if (piece_.More()) return;
    ++part_;
    piece_ = Piece(count_, piece_elems_);
  }
  constexpr int part() const { return part_; }
  constexpr size_t offset() const { return piece_.offset(); }  // counted from the part's begin
  constexpr size_t size() const { return piece_.size(); }

 private:
  int parts_;
  size_t count_, piece_elems_;
  Piece piece_;
  int part_ = 0;
};

// output = reduction of all inputs.
template <FifoPrimitives P>
constexpr void RankOrderAllReduce(P& p, int rank, int num_ranks, const WorkShape& shape,
                                  size_t lag) {
  const bool is_last = rank == num_ranks - 1, is_end = rank == num_ranks - 2;
  Piece part(shape.count, shape.chunk_elems), sum = part;
  for (size_t ahead = 0; part.More() || (!is_last && sum.More()); ++ahead) {
    if (part.More()) {
      if (rank == 0)
        p.Send(part.offset(), part.size());
      else if (!is_last)
        p.RecvReduceSend(part.offset(), part.size());
      else
        p.RecvReduceCopySendFinal(part.offset(), part.offset(), part.size());
      part.Next();
    }
    if (is_last || (ahead < lag && part.More())) continue;
    if (is_end)
      p.Recv(sum.offset(), sum.size());
    else
      p.RecvCopySend(sum.offset(), sum.size());
    sum.Next();
  }
}

// output at the root = reduction of all inputs; the sums go on to the root alone.
//
//   root 1 of 4:   0 ──▶ 1 ──▶ 2 ──▶ 3 ─ sum ─▶ 0 ─ sum ─▶ 1
//
// Only the ranks up to the root take sums. A rank behind the root waits for no rank behind itself.
// A rank before the root waits only for sums whose parts it has already sent.
template <ForwardingPrimitives P>
constexpr void RankOrderReduce(P& p, int rank, int num_ranks, const WorkShape& shape, size_t lag) {
  const bool is_last = rank == num_ranks - 1, is_root = rank == shape.root;
  const bool takes_sum = !is_last && rank <= shape.root && shape.root != num_ranks - 1;
  Piece part(shape.count, shape.chunk_elems), sum = part;
  for (size_t ahead = 0; part.More() || (takes_sum && sum.More()); ++ahead) {
    if (part.More()) {
      if (rank == 0)
        p.Send(part.offset(), part.size());
      else if (!is_last)
        p.RecvReduceSend(part.offset(), part.size());
      else if (is_root)
        p.RecvReduceCopyFinal(part.offset(), part.offset(), part.size());
      else
        p.RecvReduceSendFinal(part.offset(), part.size());
      part.Next();
    }
    if (!takes_sum || (ahead < lag && part.More())) continue;
    if (is_root)
      p.Recv(sum.offset(), sum.size());
    else
      p.RecvSend(sum.size());
    sum.Next();
  }
}

// output = reduction over ranks of their inputs' part of this rank. Parts are `stride` apart.
template <ForwardingPrimitives P>
constexpr void RankOrderReduceScatter(P& p, int rank, int num_ranks, const WorkShape& shape,
                                      size_t stride, size_t lag) {
  const int last = num_ranks - 1;
  PartPieces part(num_ranks, shape.count, shape.chunk_elems), sum = part;
  for (size_t ahead = 0; part.More() || sum.More(); ++ahead) {
    if (part.More()) {
      const size_t in = static_cast<size_t>(part.part()) * stride + part.offset();
      if (rank == 0)
        p.Send(in, part.size());
      else if (rank != last)
        p.RecvReduceSend(in, part.size());
      else if (part.part() == last)
        p.RecvReduceCopyFinal(in, part.offset(), part.size());
      else
        p.RecvReduceSendFinal(in, part.size());
      part.Next();
    }
    if (ahead < lag && part.More()) continue;
    // The last rank keeps its own sums and passes none.
    if (rank == sum.part() && rank != last)
      p.Recv(sum.offset(), sum.size());
    else if (rank < sum.part() && sum.part() != last)
      p.RecvSend(sum.size());
    sum.Next();
  }
}

// AllReduce, ReduceScatter or Reduce with elements added in the order of the ranks. REQUIRES: the
// ring is in the order of the ranks; `lag` as at the top.
template <ForwardingPrimitives P>
constexpr void RankOrderReduction(P& p, Collective collective, const RingWork& work, size_t lag) {
  const int rank = work.ring.index, n = work.ring.num_ranks;
  if (collective == Collective::kAllReduce)
    RankOrderAllReduce(p, rank, n, work.shape, lag);
  else if (collective == Collective::kReduceScatter)
    RankOrderReduceScatter(p, rank, n, work.shape, work.stride, lag);
  else
    RankOrderReduce(p, rank, n, work.shape, lag);
}

}  // namespace tutti::kernels
