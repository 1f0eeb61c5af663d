#pragma once

// Algorithms for GPUs that can all write into one another's memory. Hosts run the reductions of
// this file over FIFOs between all pairs of ranks (backend/host/mesh_primitives.h).
//
// Every rank has an inbox with a slot for each peer. In a round every rank writes into its slot at
// every peer (perhaps nothing), publishes, waits until all peers have published, and reads. Data
// are always written to the rank that needs them; a read across the wire would cost a round trip.
//
//   one-shot   push own data to all ─ wait ─ reduce all
//   two-shot   push part r to rank r ─ wait ─ reduce own part, push it to all ─ wait ─ fetch parts
//
// Rooted operations on long vectors are two-shot as well. The owners of the parts are then the
// ranks besides the root, and no rank sends or receives more than the vector once.
//
// The reuse of slots needs no acknowledgement. Round r uses slot r mod kMeshSlots, and in every
// step each rank hears from all ranks:
//
//   one round   P0 P1 | C0 P2 | C1 P3 | C2 …           (P: push, C: consume)
//   two-shot    A0 | A1 B0 | A2 B1 F0 | A3 B2 F1 | …   (A: parts, B: results, F: results fetched;
//                                                       `|`: publish all of it, and wait)
//
// One round: when a rank pushes P(q+1), its C(q-1) is done, hence every rank has pushed P(q-1).
// Every rank pushed P(q-1) after its C(q-3), the last user of the slot of P(q+1). Two-shot: A(q+1)
// goes to the slot of A(q-1), and B(q) to the slot of B(q-2). All ranks had read both before they
// published the step for which this rank has just waited. The same argument covers the passage to
// the next operation, which begins after the end of its predecessor.
//
// backend/cuda/mesh_test.cc runs the algorithms under the thread sanitizer, with one thread for
// each block. The test shows that the rounds order every reuse of a slot. The test says nothing
// about CUDA's memory model or about the threads within a block, for which tests/gpu runs
// compute-sanitizer.
//
// LL and LL128 wait for no step as a whole, hence a block has one piece for each operation: one
// round, or two, of the four slots. A rank overwrites only data whose reader's kernel has ended.
// The rank knows of that end from the first line of the next operation, since every two ranks
// exchange a first line even without data.

#include <cstdint>

#include "kernels/primitives.h"
#include "plan/work.h"

namespace tutti {

inline constexpr uint64_t kMeshSlots = 4;

// Elements [at, at + size) of a buffer.
struct MeshPart {
  size_t at = 0;
  size_t size = 0;
};

// Maps each rank to its part of a buffer: parts of `size` elements, `stride` apart from `at` on,
// within the next `total` elements. The type is a plain value rather than a function, in order that
// all operations share one copy of the code that walks over parts.
struct MeshParts {
  size_t at = 0;
  size_t stride = 0;
  size_t size = 0;
  size_t total = ~size_t{0};
  int only = -1;  // the only rank with a part; -1: all ranks have one
  int skip = -1;  // a rank without a part, left out of the count; -1: none

  constexpr MeshPart operator()(int rank) const {
    if ((only >= 0 && rank != only) || rank == skip) return {at, 0};
    const size_t from = static_cast<size_t>(skip >= 0 && rank > skip ? rank - 1 : rank) * stride;
    return {at + from, ClampChunk(from, size, total)};
  }
  constexpr bool SameForAll() const { return stride == 0 && only < 0 && skip < 0; }
};

// Primitives of one round: a rank pushes (once), publishes, waits, and reads by one of the
// remaining calls. Results that are marked "final" are divided if the operation asks for a
// division.
template <class P>
concept MeshOneShotPrimitives = requires(P p, size_t in, size_t out, size_t n, uint64_t round,
                                         const MeshParts& parts) {
  { p.rank() } -> std::convertible_to<int>;
  { p.num_ranks() } -> std::convertible_to<int>;
  {
    p.TakeRounds(round)
    } -> std::convertible_to<uint64_t>;  // takes `round` rounds; returns the first
  p.Push(round, parts);                  // input[parts(peer)] → slot at each peer (scaled)
  p.Publish(round);                      // tells all peers that the pushed data have arrived
  p.Wait(round);                         // waits until all peers have published the round
  p.Reduce(round, in, out, n);  // own input and all slots, in rank order → output (final)
};

// Primitives for reductions in two rounds.
template <class P>
concept MeshReductionPrimitives = MeshOneShotPrimitives<P> &&
    requires(P p, int peer, size_t in, size_t out, size_t n, uint64_t round,
             const MeshParts& parts) {
  p.Fetch(round, parts);  // slot of each peer → output[parts(rank)]
  // As Reduce, and pushes the result to the slots at all peers in round `to`; with `peer` ≥ 0 the
  // result goes only to the slot at `peer` (final).
  p.ReducePush(round, in, out, n, round, peer);
};

// Primitives for collectives that only move data.
template <class P>
concept MeshPrimitives = MeshReductionPrimitives<P> &&
    requires(P p, int peer, size_t in, size_t out, size_t n, uint64_t round) {
  // Slot of `peer` → output, and → slots at all peers except `peer` in round `to`.
  p.Forward(round, peer, out, n, round);
  p.CopyLocal(in, out, n);  // input → output
};

// Describes the work of one block of a collective: elements [begin, begin + count) of each part of
// `stride` elements (AllGather, ReduceScatter, AlltoAll, Gather, Scatter) or of the whole.
struct MeshShape {
  size_t begin = 0;
  size_t count = 0;
  size_t stride = 0;
  size_t chunk_elems = 1;  // the length of a slot
  size_t first_elems = 1;  // the length of the first piece, at most chunk_elems
  int root = 0;

  constexpr Piece Pieces() const { return {count, chunk_elems, first_elems}; }
};
// Returns the shape of work that is not divided over blocks, in pieces of one length.
constexpr MeshShape MeshShapeOf(const WorkShape& work) {
  return {.count = work.count,
          .stride = work.count,
          .chunk_elems = work.chunk_elems,
          .first_elems = work.chunk_elems,
          .root = work.root};
}

namespace kernels {

// Selects how a one-round operation without reduction pushes and fetches.
enum class MeshMove : uint8_t { kAllGather, kAlltoAll, kScatter, kGather, kBroadcast };

template <MeshPrimitives P>
constexpr void MeshExchange(P& p, const MeshShape& shape, MeshMove move) {
  const int me = p.rank(), root = shape.root;
  const bool is_root = me == root;
  // `many` gives the parts of a piece in a buffer with a stretch for each rank, `one` in the rest.
  const auto many = [&](const Piece& piece) {
    return MeshParts{
        .at = shape.begin + piece.offset(), .stride = shape.stride, .size = piece.size()};
  };
  const auto one = [&](const Piece& piece) {
    return MeshParts{.at = shape.begin + piece.offset(), .size = piece.size()};
  };
  const auto begin = [&](const Piece& piece) {
    MeshParts send =
        move == MeshMove::kAlltoAll || move == MeshMove::kScatter ? many(piece) : one(piece);
    if (move == MeshMove::kGather) send.only = root;
    if ((move == MeshMove::kScatter || move == MeshMove::kBroadcast) && !is_root) send.size = 0;
    const uint64_t round = p.TakeRounds(1);
    p.Push(round, send);
    p.Publish(round);
    return round;
  };
  OneAhead(shape.Pieces(), begin, [&](const Piece& piece, uint64_t round) {
    MeshParts receive =
        move == MeshMove::kScatter || move == MeshMove::kBroadcast ? one(piece) : many(piece);
    if (move == MeshMove::kGather && !is_root) receive.size = 0;
    if (move == MeshMove::kScatter || move == MeshMove::kBroadcast) receive.only = root;
    const size_t offset = shape.begin + piece.offset();
    const size_t own = static_cast<size_t>(me) * shape.stride + offset;
    const bool from_many = move == MeshMove::kAlltoAll || move == MeshMove::kScatter;
    const bool to_many = move != MeshMove::kScatter && move != MeshMove::kBroadcast;
    if (move == MeshMove::kAllGather || move == MeshMove::kAlltoAll || is_root)
      p.CopyLocal(from_many ? own : offset, to_many ? own : offset, piece.size());
    p.Wait(round);
    p.Fetch(round, receive);
  });
}

// One-round reductions: a result for every rank (AllReduce in one shot), for each rank its part
// (ReduceScatter), or for the root alone (Reduce in one shot).
enum class MeshReduction : uint8_t { kAll, kScatter, kRoot };
constexpr MeshReduction ReductionOf(Collective collective) {
  return collective == Collective::kReduceScatter ? MeshReduction::kScatter
         : collective == Collective::kReduce      ? MeshReduction::kRoot
                                                  : MeshReduction::kAll;
}

template <MeshOneShotPrimitives P>
constexpr void MeshOneShotReduction(P& p, const MeshShape& shape, MeshReduction which) {
  const auto begin = [&](const Piece& piece) {
    MeshParts send = {.at = shape.begin + piece.offset(), .size = piece.size()};
    if (which == MeshReduction::kScatter) send.stride = shape.stride;
    if (which == MeshReduction::kRoot) send.only = shape.root;
    const uint64_t round = p.TakeRounds(1);
    p.Push(round, send);
    p.Publish(round);
    return round;
  };
  OneAhead(shape.Pieces(), begin, [&](const Piece& piece, uint64_t round) {
    const size_t out = shape.begin + piece.offset();
    const size_t part =
        which == MeshReduction::kScatter ? static_cast<size_t>(p.rank()) * shape.stride : 0;
    p.Wait(round);
    const bool mine = which != MeshReduction::kRoot || p.rank() == shape.root;
    p.Reduce(round, part + out, out, mine ? piece.size() : 0);
  });
}

// ReduceScatter of parts of different lengths. On hosts only, since a GPU's slots are for equal
// parts.
template <MeshReductionPrimitives P, class Parts>
constexpr void MeshReduceScatter(P& p, const Parts& parts, const MeshShape& shape) {
  const auto part_of = [&](const Piece& piece, int rank) {
    return MeshPart{parts.Offset(rank) + piece.offset(),
                    ClampChunk(piece.offset(), piece.size(), parts.Size(rank))};
  };
  const auto begin = [&](const Piece& piece) {
    const uint64_t round = p.TakeRounds(1);
    p.Push(round, [&](int rank) { return part_of(piece, rank); });
    p.Publish(round);
    return round;
  };
  OneAhead(shape.Pieces(), begin, [&](const Piece& piece, uint64_t round) {
    const MeshPart own = part_of(piece, p.rank());
    p.Wait(round);
    p.Reduce(round, own.at, piece.offset(), own.size);
  });
}

// Returns a piece cut into a part for each owner, aligned to `unit` elements. With a root ≥ 0 the
// owners are all ranks except the root.
constexpr MeshParts CutPiece(const MeshShape& shape, const Piece& piece, int num_ranks, int root,
                             size_t unit) {
  const auto owners = static_cast<size_t>(root < 0 ? num_ranks : num_ranks - 1);
  const size_t share = DivUp(DivUp(piece.size(), owners), unit) * unit;
  return {.at = shape.begin + piece.offset(),
          .stride = share,
          .size = share,
          .total = piece.size(),
          .skip = root};
}

// Runs the steps of a two-shot operation: push(piece, round), middle(piece, from, to), fetch(piece,
// round). Each call appears in the code once, as in OneAhead.
template <MeshReductionPrimitives P, class Push, class Middle, class Fetch>
constexpr void MeshTwoRounds(P& p, const MeshShape& shape, int owners, Push push, Middle middle,
                             Fetch fetch) {
  const auto n = static_cast<size_t>(owners);
  Piece ahead(shape.count, shape.chunk_elems * n, shape.first_elems * n);
  const uint64_t pieces = ahead.Number();
  if (pieces == 0) return;
  const uint64_t base = p.TakeRounds(2 * pieces);
  const auto last_of = [&](uint64_t step) {  // the last round of a step
    return base + (step < pieces ? 2 * step : 2 * pieces - 1);
  };
  Piece piece = ahead, behind = ahead;
  for (uint64_t step = 0; step <= pieces + 1; ++step) {
    if (step > 0) p.Wait(last_of(step - 1));
    if (step < pieces) {
      push(ahead, base + 2 * step);
      ahead.Next();
    }
    if (step > 0 && step <= pieces) {
      const uint64_t from = base + 2 * (step - 1);
      middle(piece, from, from + 1);
      piece.Next();
    }
    if (step > 1) {
      fetch(behind, base + 2 * (step - 2) + 1);
      behind.Next();
    }
    if (step <= pieces) p.Publish(last_of(step));
  }
}

// AllReduce, and with root ≥ 0 Reduce.
template <MeshReductionPrimitives P>
constexpr void MeshTwoShotReduction(P& p, const MeshShape& shape, int root, size_t unit) {
  const int n = p.num_ranks();
  const auto cut = [&](const Piece& piece) { return CutPiece(shape, piece, n, root, unit); };
  MeshTwoRounds(
      p, shape, root < 0 ? n : n - 1,
      [&](const Piece& piece, uint64_t round) { p.Push(round, cut(piece)); },
      [&](const Piece& piece, uint64_t from, uint64_t to) {
        // The root of a Reduce has no part and sends nothing.
        const MeshPart mine = cut(piece)(p.rank());
        p.ReducePush(from, mine.at, mine.at, mine.size, to, root);
      },
      [&](const Piece& piece, uint64_t round) {
        MeshParts parts = cut(piece);
        if (root >= 0 && p.rank() != root) parts.size = 0;
        p.Fetch(round, parts);
      });
}

template <MeshPrimitives P>
constexpr void MeshTwoShotBroadcast(P& p, const MeshShape& shape, size_t unit) {
  const int n = p.num_ranks(), root = shape.root;
  const bool is_root = p.rank() == root;
  const auto cut = [&](const Piece& piece) { return CutPiece(shape, piece, n, root, unit); };
  MeshTwoRounds(
      p, shape, n - 1,
      [&](const Piece& piece, uint64_t round) {
        MeshParts parts = cut(piece);
        if (!is_root) parts.size = 0;
        p.Push(round, parts);
      },
      [&](const Piece& piece, uint64_t from, uint64_t to) {
        const MeshParts parts = cut(piece);
        const MeshPart mine = parts(p.rank());
        if (is_root) p.CopyLocal(parts.at, parts.at, piece.size());
        p.Forward(from, root, mine.at, mine.size, to);
      },
      [&](const Piece& piece, uint64_t round) {
        MeshParts parts = cut(piece);
        if (is_root) parts.size = 0;
        p.Fetch(round, parts);
      });
}

}  // namespace kernels
}  // namespace tutti
