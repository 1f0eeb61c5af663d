#include "plan/channel_plan.h"

#include <algorithm>

#include "base/rounding.h"
#include "connection/fifo_layout.h"
#include "plan/cost_table.h"

namespace tutti {
namespace {

constexpr size_t kAlignment = 16;  // Channels and slices begin at whole lines.

// Returns into how many parts, one for each rank, the collective cuts its data.
size_t Owners(const ChannelContext& context, Collective collective) {
  return collective == Collective::kAllReduce ? static_cast<size_t>(context.num_ranks) : 1;
}

}  // namespace

ChannelPlan PlanChannels(const ChannelContext& context, Collective collective, size_t count,
                         size_t elem_bytes) {
  const size_t unit = std::max<size_t>(1, kAlignment / elem_bytes);
  const size_t owners = Owners(context, collective);
  const auto channels = std::clamp<size_t>(
      count * elem_bytes / owners / kChannelCosts.ring_bytes_per_channel, 1, context.channels);
  ChannelPlan plan;
  plan.channel_elems = RoundUp(DivUp(count, channels), unit * owners);
  plan.channels = static_cast<uint32_t>(DivUp(count, plan.channel_elems));
  const size_t step = DivUp(plan.channel_elems, owners);
  const size_t wanted = std::max(DivUp(step, kSlicesPerStep), kMinSliceBytes / elem_bytes);
  plan.slice_elems = std::min(RoundUp(wanted, unit), context.slot_bytes / elem_bytes);
  plan.chunk_elems = plan.slice_elems * kSlicesPerStep;
  return plan;
}

ChannelPlan PlanRankOrder(const ChannelContext& context, Collective collective, size_t count,
                          DataType type) {
  const size_t elem_bytes = SizeOf(type);
  const size_t sum_bytes = IsFloat(type) ? std::max(elem_bytes, sizeof(float)) : elem_bytes;
  const size_t unit = std::max<size_t>(1, kAlignment / elem_bytes);
  const size_t parts =
      collective == Collective::kReduceScatter ? static_cast<size_t>(context.num_ranks) : 1;
  const auto channels = std::clamp<size_t>(
      count * parts * elem_bytes / kChannelCosts.ring_bytes_per_channel, 1, context.channels);
  ChannelPlan plan;
  plan.channel_elems = RoundUp(DivUp(count, channels), unit);
  plan.channels = static_cast<uint32_t>(DivUp(count, plan.channel_elems));
  // As many slices as keep the slots of two FIFOs filled.
  const size_t wanted = std::max(DivUp(plan.channel_elems * parts, size_t{2} * kFifoSlots),
                                 kMinSliceBytes / elem_bytes);
  plan.slice_elems = std::min(RoundUp(wanted, unit), context.slot_bytes / sum_bytes / unit * unit);
  plan.chunk_elems = plan.slice_elems;
  return plan;
}

double PredictChannelsUs(const ChannelContext& context, Collective collective, size_t count,
                         size_t elem_bytes) {
  const bool all_reduce = collective == Collective::kAllReduce;
  const bool is_chain = collective == Collective::kReduce || collective == Collective::kBroadcast;
  const bool has_parts =
      collective == Collective::kAllGather || collective == Collective::kReduceScatter;
  if (!all_reduce && !is_chain && !has_parts) {
    // Messages go down chains of two, one after another.
    ChannelContext pair = context;
    pair.num_ranks = 2;
    const int messages = collective == Collective::kSendRecv ? 1 : context.num_ranks - 1;
    return PredictChannelsUs(pair, Collective::kBroadcast,
                             count * elem_bytes * static_cast<size_t>(messages), 1);
  }
  const ChannelPlan plan = PlanChannels(context, collective, count, elem_bytes);
  const double n = context.num_ranks;
  const double bytes = static_cast<double>(count * elem_bytes);
  const double passed = all_reduce ? 2 * bytes * (n - 1) / n : has_parts ? bytes * (n - 1) : bytes;
  const double steps = (all_reduce ? 2 : 1) * (n - 1);
  const double hosts = std::min<double>(context.num_hosts, n);
  const auto& costs = kChannelCosts;
  const double step_us =
      hosts > 1 ? (costs.network_step_us * hosts + costs.window_step_us * (n - hosts)) / n
                : costs.window_step_us;
  double bytes_per_us = costs.channel_bytes_per_us * plan.channels;
  if (context.network_bytes_per_us > 0)
    bytes_per_us = std::min(bytes_per_us, context.network_bytes_per_us);
  return steps * step_us + passed / bytes_per_us;
}

}  // namespace tutti
