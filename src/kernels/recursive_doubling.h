#pragma once

// AllReduce in log2(n) exchanges: in step k every rank swaps its running result with the partner at
// distance 2^k. The whole vector travels in each step, hence the algorithm suits messages whose
// cost is the number of hops.
//
// When n is no power of two, let p be the largest power of two below n. The first 2(n - p) ranks
// pair up: one rank of each pair gives its input to its partner, takes no further part, and
// receives the result at the end.
//
// Both partners combine in the same order (lower block first), hence all hold the same bits after
// every step.

#include "kernels/primitives.h"

namespace tutti::kernels {

template <ExchangePrimitives P>
constexpr void RecursiveDoublingAllReduce(P& p, int rank, int num_ranks, size_t count) {
  int power = 1;
  while (power * 2 <= num_ranks) power *= 2;
  const int paired = 2 * (num_ranks - power);

  p.LoadInput(count);
  if (rank < paired && rank % 2 == 1) {
    p.SendOutput(rank - 1, count);
    p.RecvOutput(rank - 1, count);
    return;
  }
  if (rank < paired) p.RecvReduceOutput(rank + 1, true, count);

  // The ranks that take part are numbered without gaps.
  const int me = rank < paired ? rank / 2 : rank - paired / 2;
  const auto rank_of = [&](int place) {
    return place < paired / 2 ? 2 * place : place + paired / 2;
  };
  for (int distance = 1; distance < power; distance *= 2) {
    const int partner = rank_of(me ^ distance);
    p.ExchangeReduceOutput(partner, (me & distance) == 0, count);
  }
  p.FinishOutput(count);
  if (rank < paired) p.SendOutput(rank + 1, count);
}

}  // namespace tutti::kernels
