#pragma once

// Plans how a collective runs on GPUs that channels join (several hosts, more than 16 ranks): round
// the rings or down the chains of all ranks, by two levels (kernels/two_level.h), AllReduces also
// by trees (gpu/channel_trees.h), or, where little data moves among few ranks, from each rank to
// every other: AllReduces and ReduceScatters in one shot (kernels/mesh.h), AllGathers and
// Broadcasts as messages (plan/pair_messages.h); over how many channels, in which chunks. Pure
// functions, so that all ranks come to the same.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/datatype.h"
#include "base/status.h"
#include "plan/mesh_limits.h"
#include "plan/reduction_order.h"
#include "plan/work.h"

namespace tutti {

// From so many ranks on AllReduces go by trees where that takes least time. Among fewer, every
// other way was measured to be faster (bench/results/gpu.md), by more than the estimates tell:
// there they do so only where NCCL_ALGO leaves nothing else that serves.
inline constexpr int kFewestTreeRanks = kMostOneShotRanks + 1;

// Holds what the choice depends on, which is the same on all ranks of a communicator.
struct ChannelContext {
  int num_ranks = 1;
  int num_hosts = 1;
  uint32_t channels = 1;  // A plan uses at most so many.
  size_t slot_bytes = 0;
  size_t pair_slot_bytes = 0;  // That of the FIFOs between all pairs of ranks; 0: there are none.
  // All NICs of a host together send so much; 0 where it is not known.
  double network_bytes_per_us = 0;
  // The ranks of each host, where all have equally many that reach one another's windows; else 0.
  int local_ranks = 0;
  // AllReduces may go by so many trees, which take two channels each; 0: there are none.
  uint32_t trees = 0;
  size_t tree_slot_bytes = 0;
  int most_local_ranks = 1;  // The ranks of the host that has most.
  // For each Collective, a bit for each Algorithm that NCCL_ALGO leaves, or 0 for all. Where
  // nothing of it serves, it has no effect.
  std::array<uint32_t, kNumCollectives> allowed_algorithms = {};
};

// Of an exchange of messages only the algorithm counts: each message is cut by its own length.
struct ChannelPlan {
  Algorithm algorithm = Algorithm::kRing;
  bool in_rank_order = false;  // Elements are added in the order of the ranks, which the ring has.
  uint32_t channels = 1;       // Of trees, their number.
  size_t channel_elems = 0;    // Each channel or tree but the last has so many.
  size_t chunk_elems = 0;      // A step of the ring moves so many.
  size_t slice_elems = 0;      // A slot holds so many.
};

// Returns how a collective runs: by the algorithm that takes least time, of those that keep
// `order`. `count` is as in NCCL's calls, `type` a type of one byte for collectives that move
// bytes. REQUIRES: num_ranks > 1, count > 0; `collective` is AllReduce, Reduce, Broadcast,
// AllGather or ReduceScatter.
ChannelPlan PlanChannels(const ChannelContext& context, Collective collective, size_t count,
                         DataType type, ReductionOrder order = ReductionOrder::kAny);

// Returns how long any collective but a barrier takes, in microseconds. Those that are not named
// above are messages between pairs.
double PredictChannelsUs(const ChannelContext& context, Collective collective, size_t count,
                         DataType type, ReductionOrder order = ReductionOrder::kAny);

// Restricts the choice by NCCL_ALGO, as ApplyAlgorithmList does for hosts: ring, twolevel, tree,
// oneshot, exchange.
Status ApplyChannelAlgorithms(std::string_view algo, ChannelContext& context);

}  // namespace tutti
