#pragma once

// Runs one channel's part of a collective round a ring: chooses the algorithm of kernels/ring.h.
// Kernels of GPUs and ranks on hosts move data by these functions, and both count by them what will
// pass (kernels/counting.h).

#include "kernels/rank_order.h"
#include "kernels/ring.h"
#include "plan/work.h"

namespace tutti::kernels {

struct RingWork {
  RingView ring;
  WorkShape shape;
  size_t stride = 0;      // elements between the parts of the longer buffer
  bool in_place = false;  // a Broadcast's root has its output in its input's buffer
};

// Equal parts in a buffer of longer parts: a channel's share of each part.
struct StridedParts {
  size_t count;
  size_t stride;
  constexpr size_t Offset(int rank) const { return static_cast<size_t>(rank) * stride; }
  constexpr size_t Size(int) const { return count; }
  constexpr size_t Longest() const { return count; }
};

// Runs AllReduce, ReduceScatter or Reduce. `parts` are those of a ReduceScatter.
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

// AllReduce, ReduceScatter or Reduce with elements added in the order of the ranks. REQUIRES: the
// ring is in the order of the ranks; `lag` as in kernels/rank_order.h.
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

// Runs AllGather or Broadcast. `parts` are those of an AllGather.
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
