#pragma once

// Algorithms for host ranks of one machine, where every rank can read every rank's staging slots.
// (GPUs write into one another's memory instead: kernels/mesh.h.)
//
//   one-shot   stage own data ─ wait for all ─ read all
//              (one synchronisation, everybody reads n × size)
//   two-shot   stage own data ─ wait ─ reduce own part ─ stage it ─ wait ─ copy the other parts
//
// A long vector goes in pieces of at most a slot. A rank stages the next piece before it waits for
// the last piece, hence a rank that is a little late costs nothing.
//
// In two-shot every part is reduced by one rank; in one-shot every rank reduces the same staged
// bits in rank order. Either way all ranks get identical results.

#include "kernels/primitives.h"
#include "kernels/ring.h"
#include "plan/work.h"

namespace tutti::kernels {

// Calls f(peer) for every peer. Each rank starts at its own neighbour, since otherwise all ranks
// would queue at one peer.
template <DirectPrimitives P, class F>
constexpr void ForEachPeer(P& p, F f) {
  for (int i = 1; i < p.num_ranks(); ++i) f((p.rank() + i) % p.num_ranks());
}

template <DirectPrimitives P>
constexpr void OneShotAllReduce(P& p, const WorkShape& shape) {
  const auto begin = [&](const Piece& piece) {
    const uint64_t round = p.NextRound();
    p.Stage(round, 0, piece.offset(), piece.size());
    p.Publish(round, piece.size());
    return round;
  };
  OneAhead(Piece(shape.count, shape.chunk_elems), begin, [&](const Piece& piece, uint64_t round) {
    ForEachPeer(p, [&](int peer) { p.Wait(round, peer); });
    p.ReduceSlots(round, 0, piece.offset(), piece.size());
    p.EndRound(round);
  });
}

template <DirectPrimitives P>
constexpr void TwoShotAllReduce(P& p, const WorkShape& shape) {
  const auto n = static_cast<size_t>(p.num_ranks());
  struct Part {
    size_t at, size;
  };
  const auto part = [&](const Piece& piece, int rank) {
    const size_t share = DivUp(piece.size(), n);
    const size_t at = static_cast<size_t>(rank) * share;
    return Part{at, ClampChunk(at, share, piece.size())};
  };
  const auto begin = [&](const Piece& piece) {
    const uint64_t round = p.NextRound();
    const Part mine = part(piece, p.rank());
    const size_t after = mine.size == 0 ? piece.size() : mine.at + mine.size;
    const size_t before = mine.size == 0 ? piece.size() : mine.at;
    p.Stage(round, 0, piece.offset(), before);  // No peer reads this rank's own part.
    p.Stage(round, after, piece.offset() + after, piece.size() - after);
    p.Publish(round, piece.size());
    return round;
  };
  OneAhead(Piece(shape.count, shape.chunk_elems), begin, [&](const Piece& piece, uint64_t round) {
    const Part mine = part(piece, p.rank());
    const size_t at = piece.offset() + mine.at;
    ForEachPeer(p, [&](int peer) { p.Wait(round, peer); });
    p.ReducePart(round, mine.at, at, at, mine.size);
    p.EndRound(round);

    const uint64_t result = p.NextRound();
    p.StageOutput(result, 0, at, mine.size);
    p.Publish(result, mine.size);
    ForEachPeer(p, [&](int peer) {
      const Part theirs = part(piece, peer);
      p.Wait(result, peer);
      p.CopyFromSlot(result, peer, 0, piece.offset() + theirs.at, theirs.size);
    });
    p.EndRound(result);
  });
}

template <DirectPrimitives P>
constexpr void DirectReduce(P& p, const WorkShape& shape) {
  const bool is_root = p.rank() == shape.root;
  const auto begin = [&](const Piece& piece) {
    const uint64_t round = p.NextRound();
    if (!is_root) {
      p.Stage(round, 0, piece.offset(), piece.size());
      p.Publish(round, piece.size());
    }
    return round;
  };
  OneAhead(Piece(shape.count, shape.chunk_elems), begin, [&](const Piece& piece, uint64_t round) {
    if (is_root) {
      ForEachPeer(p, [&](int peer) { p.Wait(round, peer); });
      p.ReducePart(round, 0, piece.offset(), piece.offset(), piece.size());
    }
    p.EndRound(round);
  });
}

template <DirectPrimitives P>
constexpr void DirectBroadcast(P& p, const WorkShape& shape) {
  const bool is_root = p.rank() == shape.root;
  for (Piece piece(shape.count, shape.chunk_elems); piece.More(); piece.Next()) {
    const uint64_t round = p.NextRound();
    if (is_root) {
      p.Stage(round, 0, piece.offset(), piece.size());
      p.Publish(round, piece.size());
      p.CopyLocal(piece.offset(), piece.offset(), piece.size());
    } else {
      p.Wait(round, shape.root);
      p.CopyFromSlot(round, shape.root, 0, piece.offset(), piece.size());
    }
    p.EndRound(round);
  }
}

// output[parts of r] = input of rank r.
template <DirectPrimitives P, class Parts>
constexpr void DirectAllGather(P& p, const Parts& parts, const WorkShape& shape) {
  const auto size_of = [&](const Piece& piece, int rank) {
    return ClampChunk(piece.offset(), shape.chunk_elems, parts.Size(rank));
  };
  const auto begin = [&](const Piece& piece) {
    const uint64_t round = p.NextRound();
    const size_t n = size_of(piece, p.rank());
    p.Stage(round, 0, piece.offset(), n);
    p.Publish(round, n);
    return round;
  };
  OneAhead(
      Piece(parts.Longest(), shape.chunk_elems), begin, [&](const Piece& piece, uint64_t round) {
        p.CopyLocal(piece.offset(), parts.Offset(p.rank()) + piece.offset(),
                    size_of(piece, p.rank()));
        ForEachPeer(p, [&](int peer) {
          p.Wait(round, peer);
          p.CopyFromSlot(round, peer, 0, parts.Offset(peer) + piece.offset(), size_of(piece, peer));
        });
        p.EndRound(round);
      });
}

// output = reduction over ranks of their inputs' part of this rank. A slot has a piece for every
// rank.
template <DirectPrimitives P, class Parts>
constexpr void DirectReduceScatter(P& p, const Parts& parts, const WorkShape& shape) {
  const auto size_of = [&](const Piece& piece, int rank) {
    return ClampChunk(piece.offset(), shape.chunk_elems, parts.Size(rank));
  };
  const auto slot_at = [&](int rank) { return static_cast<size_t>(rank) * shape.chunk_elems; };
  const auto begin = [&](const Piece& piece) {
    const uint64_t round = p.NextRound();
    ForEachPeer(p, [&](int peer) {
      p.Stage(round, slot_at(peer), parts.Offset(peer) + piece.offset(), size_of(piece, peer));
    });
    p.Publish(round, slot_at(p.num_ranks()));
    return round;
  };
  OneAhead(Piece(parts.Longest(), shape.chunk_elems), begin,
           [&](const Piece& piece, uint64_t round) {
             ForEachPeer(p, [&](int peer) { p.Wait(round, peer); });
             p.ReducePart(round, slot_at(p.rank()), parts.Offset(p.rank()) + piece.offset(),
                          piece.offset(), size_of(piece, p.rank()));
             p.EndRound(round);
           });
}

// output[r] = input of rank r [this rank]; `shape.count` elements for each pair.
template <DirectPrimitives P>
constexpr void DirectAlltoAll(P& p, const WorkShape& shape) {
  const EqualParts parts{shape.count};
  const auto slot_at = [&](int rank) { return static_cast<size_t>(rank) * shape.chunk_elems; };
  const auto begin = [&](const Piece& piece) {
    const uint64_t round = p.NextRound();
    ForEachPeer(p, [&](int peer) {
      p.Stage(round, slot_at(peer), parts.Offset(peer) + piece.offset(), piece.size());
    });
    p.Publish(round, slot_at(p.num_ranks()));
    return round;
  };
  OneAhead(Piece(shape.count, shape.chunk_elems), begin, [&](const Piece& piece, uint64_t round) {
    const size_t own = parts.Offset(p.rank()) + piece.offset();
    p.CopyLocal(own, own, piece.size());
    ForEachPeer(p, [&](int peer) {
      p.Wait(round, peer);
      p.CopyFromSlot(round, peer, slot_at(p.rank()), parts.Offset(peer) + piece.offset(),
                     piece.size());
    });
    p.EndRound(round);
  });
}

template <DirectPrimitives P>
constexpr void DirectBarrier(P& p) {
  const uint64_t round = p.NextRound();
  p.Publish(round, 0);
  ForEachPeer(p, [&](int peer) { p.Wait(round, peer); });
  p.EndRound(round);
}

}  // namespace tutti::kernels
