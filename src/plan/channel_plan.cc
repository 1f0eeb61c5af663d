#include "plan/channel_plan.h"

#include <algorithm>

#include "base/rounding.h"
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

double PredictChannelsUs(const ChannelContext& context, Collective collective, size_t count,
                         size_t elem_bytes) {
  const ChannelPlan plan = PlanChannels(context, collective, count, elem_bytes);
  const double n = context.num_ranks;
  const bool has_parts =
      collective == Collective::kAllGather || collective == Collective::kReduceScatter;
  const double bytes = static_cast<double>(count * elem_bytes);
  const bool all_reduce = collective == Collective::kAllReduce;
  const double passed = all_reduce ? 2 * bytes * (n - 1) / n : has_parts ? bytes * (n - 1) : bytes;
  const double steps = (all_reduce ? 2 : 1) * (n - 1);
  const double hosts = context.num_hosts;
  const auto& costs = kChannelCosts;
  const double step_us =
      hosts > 1 ? (costs.network_step_us * hosts + costs.window_step_us * (n - hosts)) / n
                : costs.window_step_us;
  return steps * step_us + passed / (costs.channel_bytes_per_us * plan.channels);
}

}  // namespace tutti
