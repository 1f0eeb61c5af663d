#pragma once

// How a collective runs round the rings, or down the chains, of GPUs on several hosts: over how
// many channels, in which chunks. Pure functions, so that all ranks come to the same.

#include <cstddef>
#include <cstdint>

#include "base/datatype.h"
#include "plan/work.h"

namespace tutti {

// What the choice depends on; the same on all ranks of a communicator.
struct ChannelContext {
  int num_ranks = 1;
  int num_hosts = 1;
  uint32_t channels = 1;  // at most
  size_t slot_bytes = 0;
  double network_bytes_per_us = 0;  // between hosts; 0: not known
};

struct ChannelPlan {
  uint32_t channels = 1;
  size_t channel_elems = 0;  // of each channel but the last
  size_t chunk_elems = 0;    // of a step of the ring
  size_t slice_elems = 0;    // of a slot
};

// `count` is as in NCCL's calls, `elem_bytes` 1 for collectives that move bytes. REQUIRES:
// num_ranks > 1, count > 0; `collective` is AllReduce, Reduce, Broadcast, AllGather or
// ReduceScatter.
ChannelPlan PlanChannels(const ChannelContext& context, Collective collective, size_t count,
                         size_t elem_bytes);

// The same for reductions that add the elements in the order of the ranks (kernels/rank_order.h). A
// chunk is a slice, and a slot has room for its partial sums, which are not rounded to the type.
// REQUIRES: `collective` is AllReduce, Reduce or ReduceScatter.
ChannelPlan PlanRankOrder(const ChannelContext& context, Collective collective, size_t count,
                          DataType type);

// Returns how long any collective but a barrier takes, in microseconds. Those that are not named
// above are messages between pairs.
double PredictChannelsUs(const ChannelContext& context, Collective collective, size_t count,
                         size_t elem_bytes);

}  // namespace tutti
