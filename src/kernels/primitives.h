#pragma once

// The vocabulary of the algorithms. An algorithm is a template over a type that moves chunks. The
// type knows the target (host memory and threads, or a GPU's), the element type and the operator.
// Algorithms hold no state, use no globals and name no target.
//
// Concepts for hosts are in this file, and FifoPrimitives serves GPUs too. Concepts for GPUs are in
// kernels/mesh.h, and concepts for ranks that read one another's buffers in kernels/pull.h:
//   FifoPrimitives      ranks joined by FIFOs (connection/fifo.h): ring, tree
//   ExchangePrimitives  the same links, used pairwise: recursive doubling
//   BlockPrimitives     the same links, used pairwise for blocks of a work area: recursive halving,
//                       doubling of gathered blocks
//   DirectPrimitives    ranks that reach one staging area each: one-shot, two-shot
//
// Offsets and counts are in elements. After a failed or aborted primitive all later primitives are
// no-ops. The caller of the algorithm asks the primitives for the reason afterwards, hence
// algorithms contain no error paths.

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "base/rounding.h"

namespace tutti {

// Chunks flow from the "receive" peers to the "send" peers. `in` and `out` index the user's
// buffers. "Final" marks the one place where a reduction is complete and an average can divide.
template <class P>
concept FifoPrimitives = requires(P p, size_t in, size_t out, size_t n) {
  p.Send(in, n);                          // input → peers
  p.CopySend(in, out, n);                 // input → output and peers
  p.Recv(out, n);                         // peer → output
  p.RecvCopySend(out, n);                 // peer → output and peers
  p.RecvReduceSend(in, n);                // peers + input → peers
  p.RecvReduceCopyFinal(in, out, n);      // peers + input → output
  p.RecvReduceCopySendFinal(in, out, n);  // peers + input → output and peers
};

// Partners exchange whole vectors. The running result lives in the output buffer.
template <class P>
concept ExchangePrimitives = requires(P p, int peer, bool mine_first, size_t n) {
  p.LoadInput(n);                           // input → output (scaled, for PreMulSum)
  p.SendOutput(peer, n);                    // output → peer
  p.RecvReduceOutput(peer, mine_first, n);  // output op peer (or peer op output) → output
  // Sends to and receives from a peer that makes the same call, slice by slice, since a long vector
  // does not fit into the FIFO.
  p.ExchangeReduceOutput(peer, mine_first, n);
  p.RecvOutput(peer, n);  // peer → output
  p.FinishOutput(n);      // divides the output of an average
};

// A stretch of a work area, in elements.
struct Block {
  size_t at = 0;
  size_t size = 0;
};

// The blocks of a message, in the order of their travel. This class shows the members that the
// primitives of blocks use and serves the concepts below. Algorithms pass classes of their own.
struct BlockRun {
  constexpr int count() const { return 0; }
  constexpr Block operator[](int) const { return {}; }
};

// A rank sends blocks of its work area to one rank and at the same time receives blocks from
// another rank or from the same. The blocks of a run travel as one message, whether or not they are
// adjacent.
template <class P>
concept BlockPrimitives = requires(P p, int to, int from, BlockRun run, bool final) {
  p.Exchange(to, run, from, run);               // blocks → to; from → blocks
  p.ExchangeReduce(to, run, from, run, final);  // blocks → to; blocks op from → blocks
};

// Block primitives for a rank whose input lies outside the work area, at the same offsets.
template <class P>
concept InputBlockPrimitives = BlockPrimitives<P> &&
    requires(P p, int to, int from, BlockRun run, bool first) {
  p.LoadBlocks(run);  // input → blocks
  // Input → to; blocks op from → blocks. With `first`, input op from → blocks.
  p.InputExchangeReduce(to, run, from, run, first);
};

// Each rank owns a stage: slots that all ranks of the machine can read (connection/stage.h). In a
// round some ranks fill their slot and publish it, and the remaining ranks wait for the slot and
// read. All ranks count the same rounds in the same order.
template <class P>
concept DirectPrimitives = requires(P p, int peer, size_t in, size_t out, size_t at, size_t n,
                                    uint64_t round) {
  { p.rank() } -> std::convertible_to<int>;
  { p.num_ranks() } -> std::convertible_to<int>;
  { p.NextRound() } -> std::convertible_to<uint64_t>;
  p.Stage(round, at, in, n);  // input[in…] → own slot from element `at` on (scaled, for PreMulSum)
  p.Publish(round, n);        // announces n elements
  p.Wait(round, peer);        // waits until `peer` has published
  p.ReduceSlots(round, at, out, n);  // all slots[at…], in rank order → output (final)
  // Slots[at…] of the peers and own input[in…] → output (final).
  p.ReducePart(round, at, in, out, n);
  p.StageOutput(round, at, out, n);         // output → own slot
  p.CopyFromSlot(round, peer, at, out, n);  // slot → output
  p.CopyLocal(in, out, n);                  // input → output
  p.EndRound(round);                        // this rank reads nothing more of the round
};

// Pieces of [0, count): a piece of at most `first` elements, then of at most `piece` elements.
//
//   for (Piece p(count, piece); p.More(); p.Next()) …
//
// Different lengths of the first piece keep the blocks of a GPU out of step: while one block writes
// across the wire, another block reads arrived data. Blocks in step would all write or all read at
// the same time, and the wire would idle.
class Piece {
 public:
  constexpr Piece(size_t count, size_t piece) : Piece(count, piece, piece) {}
  constexpr Piece(size_t count, size_t piece, size_t first)
      : count_(count), piece_(piece), end_(first) {}
  constexpr bool More() const { return offset_ < count_; }
  constexpr void Next() {
    offset_ = end_;
    end_ += piece_;
  }
  constexpr size_t offset() const { return offset_; }
  constexpr size_t size() const { return (end_ < count_ ? end_ : count_) - offset_; }
  // Returns the number of pieces of [0, count). REQUIRES: Next has not been called.
  constexpr uint64_t Number() const {
    if (count_ <= end_) return count_ == 0 ? 0 : 1;
    return 1 + DivUp(count_ - end_, piece_);
  }

 private:
  size_t count_;
  size_t piece_;
  size_t offset_ = 0;
  size_t end_;
};

// Returns how many elements of a chunk of `chunk` elements at `offset` lie inside [0, count).
constexpr size_t ClampChunk(size_t offset, size_t chunk, size_t count) {
  if (offset >= count) return 0;
  return count - offset < chunk ? count - offset : chunk;
}

// Calls begin(piece) one piece ahead of finish(piece, result of begin), hence a rank that is a
// little late costs nothing. `piece` is the first piece. Each call appears in the code once, since
// both calls are long when they are compiled for a GPU.
template <class Begin, class Finish>
constexpr void OneAhead(Piece piece, Begin begin, Finish finish) {
  Piece ahead = piece;
  uint64_t next = 0;
  while (piece.More()) {
    const uint64_t round = next;
    const bool first = ahead.offset() == piece.offset();
    if (ahead.More()) {
      next = begin(ahead);
      ahead.Next();
    }
    if (first) continue;
    finish(piece, round);
    piece.Next();
  }
}

}  // namespace tutti
