#pragma once

// Collectives by two levels, for ranks on several hosts with equal numbers of ranks. Inside a host
// data go round a ring of the host's ranks, between hosts along rails. A rail is one local rank of
// every host, with its NIC.
//
//   host 0    (0,0) ──▶ (0,1) ──▶ …     each host a ring of its ranks, in any order
//               │         │
//   host 1    (1,0) ──▶ (1,1) ──▶ …     each column a rail: a ring of the hosts
//
// A piece has a chunk (h, l) for each rank: local rank l of host h. With H hosts, AllReduce takes a
// piece through H rounds of reducing and H rounds of gathering:
//
//   reduce k   the ring of the host adds the chunks of host h-k and leaves each at its local rank,
//              which adds the partial sum from the rail and passes the chunk on along the rail; in
//              the last round the chunk is the rank's own, and the sum complete
//   gather k   the result of host h-k's chunk comes by the rail, goes on by the rail, and goes round
//              the ring of the host
//
// Gathering a piece alternates with reducing the next piece: while one piece is on its way between
// hosts, the next piece moves inside the hosts. Each NIC carries 2(H-1)/H of a rank's share of the
// data. A ring over all n ranks, with its channels spread over all NICs, takes 2(n-1)/n of the
// share.
//
// All ranks make the same moves in the same order. The next rank of the ring takes a chunk in the
// move after its sending, and the next rank of a rail takes a chunk at most two sends later.
// REQUIRES: a FIFO has room for kTwoLevelChunks chunks. The room excludes deadlock: a move waits
// only for an earlier move of another rank.

#include <cstddef>
#include <cstdint>

#include "kernels/primitives.h"
#include "plan/work.h"

namespace tutti::kernels {

inline constexpr size_t kTwoLevelChunks = 3;

// The ranks from the view of one rank. REQUIRES: at least two hosts, of at least two ranks each.
struct TwoLevelView {
  int host = 0;
  int num_hosts = 1;
  int local = 0;               // this rank's number in its host
  RingView ring;               // the local ranks of this host, in the order of its ring
  const int* ranks = nullptr;  // at host × ring.num_ranks + local rank

  constexpr int HostBefore(int distance) const { return (host + num_hosts - distance) % num_hosts; }
  constexpr int Rank(int of_host, int of_local) const {
    return ranks[of_host * ring.num_ranks + of_local];
  }
};

// Bits that describe a move, which adds its sources and stores the sum at all its destinations.
inline constexpr uint32_t kFromHost = 1;  // takes a chunk from the previous rank of the host's ring
inline constexpr uint32_t kFromRail = 2;  // takes a chunk from the previous host's rank of the rail
inline constexpr uint32_t kReads = 4;     // takes the input's chunk
inline constexpr uint32_t kToHost = 8;    // sends to the next rank of the host's ring
inline constexpr uint32_t kToRail = 16;   // sends to the next host's rank of the rail
inline constexpr uint32_t kWrites = 32;   // writes to the output
inline constexpr uint32_t kIsFinal = 64;  // completes a reduction

template <class P>
concept TwoLevelPrimitives = requires(P p, uint32_t what, size_t in, size_t out, size_t n) {
  p.Move(what, in, out, n);
};

// The place of a chunk in input and output.
struct ChunkPlace {
  size_t in = 0;
  size_t out = 0;
  size_t size = 0;
};

// Reduces the chunks of the host before this host by `k` inside this host, and adds the rail's
// partial sum to the chunk for this rank. `completing` is added to the bits of the last move in the
// last round. place_of(host, local) gives the place of a chunk. REQUIRES: 1 ≤ k ≤ num_hosts.
template <TwoLevelPrimitives P, class PlaceOf>
constexpr void TwoLevelReduceRound(P& p, const TwoLevelView& view, int k, uint32_t completing,
                                   const PlaceOf& place_of) {
  const int host = view.HostBefore(k);
  const auto move = [&](uint32_t what, int local) {
    const ChunkPlace place = place_of(host, local);
    p.Move(what, place.in, place.out, place.size);
  };
  for (int step = 1; step < view.ring.num_ranks; ++step)
    move((step == 1 ? 0u : kFromHost) | kReads | kToHost, view.ring.At(view.ring.index - step));
  move(kFromHost | kReads | (k == 1 ? 0u : kFromRail) |
           (k == view.num_hosts ? kIsFinal | kWrites | completing : kToRail),
       view.local);
}

// Passes each rank's chunk round the ring of the host. The previous move has sent the own chunk.
template <TwoLevelPrimitives P, class PlaceOf>
constexpr void GatherInHost(P& p, const TwoLevelView& view, int host, const PlaceOf& place_of) {
  const int n = view.ring.num_ranks;
  for (int step = 1; step < n; ++step) {
    const ChunkPlace place = place_of(host, view.ring.At(view.ring.index - step));
    p.Move(kFromHost | kWrites | (step < n - 1 ? kToHost : 0u), place.in, place.out, place.size);
  }
}

// Takes the chunk of the host before this host by `k` from the rail and gathers it in this host.
// REQUIRES: 1 ≤ k < num_hosts.
template <TwoLevelPrimitives P, class PlaceOf>
constexpr void TwoLevelGatherRound(P& p, const TwoLevelView& view, int k, const PlaceOf& place_of) {
  const int host = view.HostBefore(k);
  const ChunkPlace place = place_of(host, view.local);
  p.Move(kFromRail | kWrites | kToHost | (k < view.num_hosts - 1 ? kToRail : 0u), place.in,
         place.out, place.size);
  GatherInHost(p, view, host, place_of);
}

// output = reduction of all inputs. `shape.count` elements; a piece has a chunk of
// shape.chunk_elems for each rank.
template <TwoLevelPrimitives P>
constexpr void TwoLevelAllReduce(P& p, const TwoLevelView& view, const WorkShape& shape) {
  const auto n = static_cast<size_t>(view.num_hosts) * static_cast<size_t>(view.ring.num_ranks);
  // The last piece is shorter. Its chunks shrink in order that all ranks still have equal work.
  const auto places_of = [&](const Piece& piece) {
    const size_t chunk = DivUp(piece.size(), n), end = piece.offset() + piece.size();
    return [=, &view](int host, int local) {
      const auto number = static_cast<size_t>(host * view.ring.num_ranks + local);
      const size_t at = piece.offset() + number * chunk;
      return ChunkPlace{at, at, ClampChunk(at, chunk, end)};
    };
  };
  // `piece` is reduced while its predecessor, `before`, is gathered.
  Piece piece(shape.count, n * shape.chunk_elems), before = piece;
  for (bool gathers = false; piece.More() || gathers; gathers = true) {
    const bool reduces = piece.More();
    for (int k = 1; k < view.num_hosts; ++k) {
      if (reduces) TwoLevelReduceRound(p, view, k, 0, places_of(piece));
      if (gathers) TwoLevelGatherRound(p, view, k, places_of(before));
    }
    if (!reduces) return;
    TwoLevelReduceRound(p, view, view.num_hosts, kToHost | kToRail, places_of(piece));
    GatherInHost(p, view, view.host, places_of(piece));
    before = piece;
    piece.Next();
  }
}

// Calls round(piece, k) for all pieces and 0 ≤ k < rounds, and begins the first round of a piece
// before the last round of its predecessor. Data of the first round then pass the network while the
// last round moves data inside the host. REQUIRES: rounds ≥ 2.
template <class Round>
constexpr void FirstRoundAhead(Piece piece, int rounds, const Round& round) {
  if (piece.More()) round(piece, 0);
  while (piece.More()) {
    for (int k = 1; k < rounds - 1; ++k) round(piece, k);
    Piece next = piece;
    next.Next();
    if (next.More()) round(next, 0);
    round(piece, rounds - 1);
    piece = next;
  }
}

// One channel's part of a collective by two levels. Kernels on GPUs move data by the functions
// below, and hosts count the traffic by them (kernels/counting.h).
struct TwoLevelWork {
  TwoLevelView view;
  WorkShape shape;
  size_t stride = 0;      // elements between the parts of the longer buffer
  bool in_place = false;  // AllGather's input lies in its part of the output
};

// output[part of r] = input of rank r.
template <TwoLevelPrimitives P>
constexpr void TwoLevelAllGather(P& p, const TwoLevelWork& work) {
  const TwoLevelView& view = work.view;
  const auto round = [&](const Piece& piece, int k) {
    const auto place_of = [&](int host, int local) {
      const size_t part = static_cast<size_t>(view.Rank(host, local)) * work.stride;
      return ChunkPlace{piece.offset(), part + piece.offset(), piece.size()};
    };
    if (k > 0) {
      TwoLevelGatherRound(p, view, k, place_of);
      return;
    }
    const ChunkPlace own = place_of(view.host, view.local);
    p.Move(kReads | kToHost | kToRail | (work.in_place ? 0u : kWrites), own.in, own.out, own.size);
    GatherInHost(p, view, view.host, place_of);
  };
  FirstRoundAhead(Piece(work.shape.count, work.shape.chunk_elems), view.num_hosts, round);
}

// output = reduction over ranks of their inputs' part of this rank.
template <TwoLevelPrimitives P>
constexpr void TwoLevelReduceScatter(P& p, const TwoLevelWork& work) {
  const TwoLevelView& view = work.view;
  const auto round = [&](const Piece& piece, int k) {
    TwoLevelReduceRound(p, view, k + 1, 0, [&](int host, int local) {
      const size_t part = static_cast<size_t>(view.Rank(host, local)) * work.stride;
      return ChunkPlace{part + piece.offset(), piece.offset(), piece.size()};
    });
  };
  FirstRoundAhead(Piece(work.shape.count, work.shape.chunk_elems), view.num_hosts, round);
}

// AllReduce or ReduceScatter.
template <TwoLevelPrimitives P>
constexpr void TwoLevelReduction(P& p, Collective collective, const TwoLevelWork& work) {
  if (collective == Collective::kAllReduce)
    TwoLevelAllReduce(p, work.view, work.shape);
  else
    TwoLevelReduceScatter(p, work);
}

}  // namespace tutti::kernels
