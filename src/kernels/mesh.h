#pragma once

// Algorithms for GPUs that can all write into one another's memory. Hosts run the reductions, over
// FIFOs between all pairs of ranks (backend/host/mesh_primitives.h).
//
// Every rank has an inbox with a slot for each other rank. A round is: every rank writes into its
// slot at every other rank (perhaps nothing), publishes, waits until all others have published to
// it, and reads. What a rank needs comes to it; nobody reads across the wire, where a read costs a
// round trip.
//
//   one-shot   push own data to all ─ wait ─ reduce all
//   two-shot   push part r to rank r ─ wait ─ reduce own part, push it to all ─ wait ─ fetch parts
//
// Rooted operations on long vectors are two-shot as well, with the ranks other than the root as
// the owners of the parts, so that no rank sends or receives more than the vector once.
//
// The reuse of slots needs no acknowledgement. Round r uses slot r mod kMeshSlots, and all ranks
// hear from all ranks in every step:
//
//   one round   P0 P1 | C0 P2 | C1 P3 | C2 …           (P: push, C: consume)
//   two-shot    A0 | A1 B0 | A2 B1 F0 | A3 B2 F1 | …   (A: parts, B: results, F: results fetched;
//                                                       `|`: publish all of it, and wait)
//
// One round: when P(q+1) is pushed, C(q-1) is done here, so everybody has pushed P(q-1), which came
// after its C(q-3), the user of the same slot. Two-shot: A(q+1) goes where A(q-1) was, and B(q)
// where B(q-2) was; both were read by everybody before the step that has just been waited for. The
// passage from one operation to the next is alike, since it begins when the one before has ended.
// backend/cuda/mesh_test.cc runs this under the thread sanitizer, with one thread for each block.
// That shows that the rounds order every reuse of a slot. It says nothing of CUDA's memory model,
// nor of the threads within a block, for which tests/gpu runs compute-sanitizer.
//
// LL and LL128 wait for no step as a whole, so a block has one piece for each operation:
// one round, or two, of the four slots. What a rank writes over was read before its reader's kernel
// ended, and that it has ended the rank knows from the first line of the next operation, which
// every two ranks exchange whether they have data or not.

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

// Says which stretch of a buffer belongs to which rank: parts of `size` elements, `stride` apart
// from `at` on, as far as `total` reaches from there. A plain value rather than a function, so that
// all operations share one copy of the code that walks over parts.
struct MeshParts {
  size_t at = 0;
  size_t stride = 0;
  size_t size = 0;
  size_t total = ~size_t{0};
  int only = -1;  // the one rank that has a part; -1: all have
  int skip = -1;  // a rank without a part, to be passed over in the count; -1: none

  constexpr MeshPart operator()(int rank) const {
    if ((only >= 0 && rank != only) || rank == skip) return {at, 0};
    const size_t from = static_cast<size_t>(skip >= 0 && rank > skip ? rank - 1 : rank) * stride;
    return {at + from, ClampChunk(from, size, total)};
  }
  constexpr bool SameForAll() const { return stride == 0 && only < 0 && skip < 0; }
};

// In each round a rank pushes (once), publishes, waits, and reads by one of the other calls.
// Results that are marked "final" are divided, where that was asked for.
template <class P>
concept MeshOneShotPrimitives = requires(P p, size_t in, size_t out, size_t n, uint64_t round,
                                         const MeshParts& parts) {
  { p.rank() } -> std::convertible_to<int>;
  { p.num_ranks() } -> std::convertible_to<int>;
  {
    p.TakeRounds(round)
    } -> std::convertible_to<uint64_t>;  // takes so many, and returns the first of them
  p.Push(round, parts);                  // input[parts(peer)] → slot at each other rank (scaled)
  p.Publish(round);                      // what was pushed is there
  p.Wait(round);                         // all others have published the round to this rank
  p.Reduce(round, in, out, n);  // own input and all slots, in rank order → output (final)
};

// What reductions in two rounds need besides.
template <class P>
concept MeshReductionPrimitives = MeshOneShotPrimitives<P> &&
    requires(P p, int peer, size_t in, size_t out, size_t n, uint64_t round,
             const MeshParts& parts) {
  p.Fetch(round, parts);  // slot of each other rank → output[parts(rank)]
  // … → slots at all others in round `to` and output; or, `peer` ≥ 0, only to its slot (final).
  p.ReducePush(round, in, out, n, round, peer);
};

// Collectives that only move data need this besides.
template <class P>
concept MeshPrimitives = MeshReductionPrimitives<P> &&
    requires(P p, int peer, size_t in, size_t out, size_t n, uint64_t round) {
  // Slot of `peer` → output, and → slots at all others but `peer` (nothing to it) in round `to`.
  p.Forward(round, peer, out, n, round);
  p.CopyLocal(in, out, n);  // input → output
};

// Says what a block of a collective works on: elements [begin, begin + count) of each part of
// `stride` elements (AllGather, ReduceScatter, AlltoAll, Gather, Scatter) or of the whole.
struct MeshShape {
  size_t begin = 0;
  size_t count = 0;
  size_t stride = 0;
  size_t chunk_elems = 1;  // So many fit a slot.
  size_t first_elems = 1;  // The first piece has so many, at most chunk_elems.
  int root = 0;

  constexpr Piece Pieces() const { return {count, chunk_elems, first_elems}; }
};
// Returns the shape of work that is not shared out over blocks, in pieces of one length.
constexpr MeshShape MeshShapeOf(const WorkShape& work) {
  return {.count = work.count,
          .stride = work.count,
          .chunk_elems = work.chunk_elems,
          .first_elems = work.chunk_elems,
          .root = work.root};
}

namespace kernels {

// Says how operations of one round that move data push and fetch.
enum class MeshMove : uint8_t { kAllGather, kAlltoAll, kScatter, kGather, kBroadcast };

template <MeshPrimitives P>
constexpr void MeshExchange(P& p, const MeshShape& shape, MeshMove move) {
  const int me = p.rank(), root = shape.root;
  const bool is_root = me == root;
  // The parts of a piece in a buffer that has a stretch for each rank, and in one that has not.
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

// One-round reductions: everybody's (AllReduce in one shot), each rank's part (ReduceScatter), the
// root's (Reduce in one shot).
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

// ReduceScatter of parts that may differ in length. On hosts only: a GPU's window has slots for
// equal parts.
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

// Returns a piece cut into a part for each owner; `unit` elements keep parts aligned. With a root ≥
// 0 the owners are the other ranks.
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
// round). Each call stands in the code once, as in OneAhead.
template <MeshReductionPrimitives P, class Push, class Middle, class Fetch>
constexpr void MeshTwoRounds(P& p, const MeshShape& shape, int owners, Push push, Middle middle,
                             Fetch fetch) {
  const auto n = static_cast<size_t>(owners);
  Piece ahead(shape.count, shape.chunk_elems * n, shape.first_elems * n);
  const uint64_t pieces = ahead.Number();
  if (pieces == 0) return;
  const uint64_t base = p.TakeRounds(2 * pieces);
  const auto last_of = [&](uint64_t step) {  // the last round that step publishes
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
        // The root of a Reduce has no part, and nothing of it to send.
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
