#include "plan/channel_plan.h"

#include <algorithm>

namespace tutti {
namespace {

constexpr size_t kAlignment = 16;  // Channels and slices begin at whole lines.
// A step keeps at most half of a FIFO's slots busy, so that every rank can send before it receives.
constexpr size_t kSlicesPerStep = 4;
// A slot's hand-over costs as much as copying so many bytes.
constexpr size_t kMinSliceBytes = 16 << 10;
// A channel costs a block and, between hosts, a message; it is worth them from so many bytes of a
// step on.
constexpr size_t kBytesPerChannel = 64 << 10;

// Microseconds until the other rank has a slice: through the memory of GPUs, and through two hosts
// and sockets between them.
constexpr double kWindowStepUs = 5;
constexpr double kNetworkStepUs = 40;
// What a channel carries over sockets, in bytes a microsecond, while it has a processor.
constexpr double kChannelBytesPerUs = 1500;

size_t DivUp(size_t a, size_t b) { return (a + b - 1) / b; }
size_t RoundUp(size_t value, size_t unit) { return DivUp(value, unit) * unit; }

// How many ranks' parts a step takes one of.
size_t Owners(const ChannelContext& context, Collective collective) {
  return collective == Collective::kAllReduce ? static_cast<size_t>(context.num_ranks) : 1;
}

}  // namespace

ChannelPlan PlanChannels(const ChannelContext& context, Collective collective, size_t count,
                         size_t elem_bytes) {
  const size_t unit = std::max<size_t>(1, kAlignment / elem_bytes);
  const size_t owners = Owners(context, collective);
  const auto channels =
      std::clamp<size_t>(count * elem_bytes / owners / kBytesPerChannel, 1, context.channels);
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
  const double step_us =
      hosts > 1 ? (kNetworkStepUs * hosts + kWindowStepUs * (n - hosts)) / n : kWindowStepUs;
  return steps * step_us + passed / (kChannelBytesPerUs * plan.channels);
}

}  // namespace tutti
