#pragma once

// Counts what a collective over channels passes through each connection of a rank, before its
// kernel starts, by running the algorithm over primitives that only count (kernels/counting.h).
// These are pure functions.

#include <cstddef>

#include "gpu/channel_rings.h"
#include "kernels/counting.h"
#include "plan/plan.h"

namespace tutti {

// Counts what passes between this rank and its neighbours on one channel: those of the ring of all
// ranks, or by two levels those of the host's ring and of the rail.
struct ChannelTraffic {
  kernels::Traffic to_next, from_previous;
  kernels::Traffic to_rail, from_rail;
};

// Says whom a channel joins this rank with: in the ring of all ranks, or by two levels in the ring
// of its host, and on its rail, where a plan has one.
struct ChannelNeighbours {
  int ring = -1;
  int rail = -1;
};
// `way` is 1 for the next ranks, -1 for the previous ones.
ChannelNeighbours NeighboursOf(const ChannelRings& rings, const Plan& plan, uint32_t channel,
                               int way);

// Returns whether a ring adds elements in the order of the ranks, which the ring then has.
inline bool InRankOrder(const Plan& plan) {
  return plan.row->where == Where::kChannelRing && plan.row->order == AddingOrder::kRankOrder;
}

// Returns what passes between this rank and each other one in one shot.
kernels::MeshCounting CountOneShot(const Plan& plan, Collective collective, size_t count, int root,
                                   int rank, int num_ranks);

// Returns what each link of a tree passes.
kernels::Traffic CountTree(const Plan& plan, size_t count, uint32_t tree);

// Returns what one channel passes, by any other algorithm. REQUIRES: two levels have a plan only
// where the rings have them.
ChannelTraffic CountChannel(const ChannelRings& rings, const Plan& plan, Collective collective,
                            size_t count, int root, uint32_t channel);

}  // namespace tutti
