#pragma once

// Pure functions that count the traffic of a collective over channels on each connection of a rank,
// before the kernel starts. The functions run the algorithm over primitives that only count
// (kernels/counting.h).

#include <cstddef>

#include "gpu/channel_rings.h"
#include "kernels/counting.h"
#include "plan/plan.h"

namespace tutti {

// Counts the traffic between this rank and its neighbours on one channel: the neighbours in the
// ring of all ranks, or by two levels the neighbours in the host's ring and on the rail.
struct ChannelTraffic {
  kernels::Traffic to_next, from_previous;
  kernels::Traffic to_rail, from_rail;
};

// Names this rank's neighbours on a channel: in the ring of all ranks, or by two levels in the ring
// of the host and on the rail.
struct ChannelNeighbours {
  int ring = -1;
  int rail = -1;
};
// `way` is 1 for the next ranks, -1 for the previous ones.
ChannelNeighbours NeighboursOf(const ChannelRings& rings, const Plan& plan, uint32_t channel,
                               int way);

// Returns whether a ring adds elements in the order of the ranks. The ring then has this order.
inline bool InRankOrder(const Plan& plan) {
  return plan.row->where == Where::kChannelRing && plan.row->order == AddingOrder::kRankOrder;
}

// Returns the traffic of a one-shot reduction between this rank and every peer.
kernels::MeshCounting CountOneShot(const Plan& plan, Collective collective, size_t count, int root,
                                   int rank, int num_ranks);

// Returns the traffic of each link of a tree.
kernels::Traffic CountTree(const Plan& plan, size_t count, uint32_t tree);

// Returns the traffic of one channel, for rings and two levels. REQUIRES: a plan of two levels is
// made only where the rings have two levels.
ChannelTraffic CountChannel(const ChannelRings& rings, const Plan& plan, Collective collective,
                            size_t count, int root, uint32_t channel);

}  // namespace tutti
