#pragma once

// ReduceScatter and AllGather in log2(n) exchanges, with as few bytes as a ring. A rank owns one
// block of a work area. Ranks stand in a ring, and `me` is a rank's place in the ring.
//
// Where n is a power of two, places are swapped in pairs, as in a hypercube: at distance d with
// place me ^ d. `own` is the run of d places that holds me and begins at a multiple of d, and
// `other` is the partner's run.
//
//   halving, distance 4, 2, 1            doubling, distance 1, 2, 4
//   blocks other ──▶ rank me^d           blocks own   ──▶ rank me^d
//   blocks own   ◀── rank me^d (added)   blocks other ◀── rank me^d
//
// The ranks of a host follow one another in the ring. Where all hosts have the same number of
// ranks, a power of two, the distances below this number stay within a host. Data then cross the
// network log2(hosts) times in sequence; a ring crosses the network once for each host.
//
// Any other n:
//
//   halving, distance 4, 2, 1            doubling, distance 1, 2, 4
//   blocks me+d … ──▶ rank me+d          blocks me … ──▶ rank me-d
//   blocks me …   ◀── rank me-d (added)  blocks me+d … ◀── rank me+d
//
// Before the exchange at distance d of a halving a rank holds partial sums of the blocks me to
// me+2d-1, or of all blocks if there are fewer. The rank gives the far half away and adds to the
// near half, and in the end it holds the sum of its own block. Doubling runs the same exchanges
// backwards. The exchange at the largest distance is shorter. Every exchange crosses each host's
// border.
//
// The blocks of an exchange travel as one message. The algorithms therefore suit small blocks,
// where the number of messages decides. A ring is faster with large blocks, because it works on one
// piece of a block while the next piece travels.

#include <algorithm>
#include <bit>

#include "kernels/primitives.h"
#include "kernels/ring.h"
#include "plan/work.h"

namespace tutti::kernels {

// Blocks that are computed from their number.
template <class At>
struct ListedBlocks {
  int size;
  At at;
  constexpr int count() const { return size; }
  constexpr Block operator[](int i) const { return at(i); }
};
template <class At>
ListedBlocks(int, At) -> ListedBlocks<At>;

template <class Parts>
constexpr Block BlockOf(const Parts& parts, int rank) {
  return {parts.Offset(rank), parts.Size(rank)};
}

// Returns the blocks of `count` ranks, from the rank at place `first` of the ring on.
template <class Parts>
constexpr auto PlacesOf(const RingView& ring, const Parts& parts, int first, int count) {
  return ListedBlocks{count,
                      [&ring, &parts, first](int i) { return BlockOf(parts, ring.At(first + i)); }};
}

// The places of one exchange.
struct BlockSwap {
  int to, from;        // the places of the receiver and of the sender
  int sent, received;  // the first place whose block is sent, or received
  int blocks;          // the number of blocks each way
};

// Returns the exchange of a halving at distance `d`.
constexpr BlockSwap HalvingSwap(int me, int n, int d) {
  if (std::has_single_bit(static_cast<unsigned>(n))) {
    const int partner = me ^ d;
    return {partner, partner, partner & -d, me & -d, d};
  }
  return {me + d, me - d, me + d, me, std::min(d, n - d)};
}

// Returns the exchange of a doubling, which is the exchange of the halving backwards.
constexpr BlockSwap DoublingSwap(int me, int n, int d) {
  const BlockSwap swap = HalvingSwap(me, n, d);
  return {swap.from, swap.to, swap.received, swap.sent, swap.blocks};
}

// Adds up every rank's block. The work area holds the rank's inputs, and in the end the result in
// its own block.
template <BlockPrimitives P, class Parts>
constexpr void HalvingReduceScatter(P& p, const RingView& ring, const Parts& parts) {
  const int n = ring.num_ranks;
  const int me = ring.index;
  for (int d = static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1))); d >= 1; d /= 2) {
    const BlockSwap swap = HalvingSwap(me, n, d);
    p.ExchangeReduce(ring.At(swap.to), PlacesOf(ring, parts, swap.sent, swap.blocks),
                     ring.At(swap.from), PlacesOf(ring, parts, swap.received, swap.blocks), d == 1);
  }
}

// Gathers every rank's block. The work area holds the rank's own block at the beginning.
template <BlockPrimitives P, class Parts>
constexpr void DoublingAllGather(P& p, const RingView& ring, const Parts& parts) {
  const int n = ring.num_ranks;
  const int me = ring.index;
  for (int d = 1; d < n; d *= 2) {
    const BlockSwap swap = DoublingSwap(me, n, d);
    p.Exchange(ring.At(swap.to), PlacesOf(ring, parts, swap.sent, swap.blocks), ring.At(swap.from),
               PlacesOf(ring, parts, swap.received, swap.blocks));
  }
}

}  // namespace tutti::kernels
