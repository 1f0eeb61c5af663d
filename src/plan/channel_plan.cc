#include "plan/channel_plan.h"

#include <algorithm>
#include <vector>

#include "base/rounding.h"
#include "connection/fifo_layout.h"
#include "plan/algorithm_table.h"
#include "plan/cost_table.h"
#include "plan/mesh_limits.h"

namespace tutti {
namespace {

constexpr size_t kAlignment = 16;  // Channels and slices begin at whole lines.

// A chunk of two levels has so many slices. A FIFO then holds four chunks, of which the schedule
// needs three (kernels/two_level.h).
constexpr size_t kTwoLevelSlices = 2;
static_assert(kFifoSlots >= 3 * kTwoLevelSlices);

// Returns how many trees an AllReduce may use: each has a channel for each way.
uint32_t TreesOf(const ChannelContext& context) {
  return std::min(context.trees, context.channels / 2);
}

// Returns into how many parts, one for each rank, the collective cuts its data.
size_t Owners(const ChannelContext& context, Collective collective) {
  return collective == Collective::kAllReduce ? static_cast<size_t>(context.num_ranks) : 1;
}

// Shares `count` elements out over the channels.
ChannelPlan ShareOut(const ChannelContext& context, size_t count, size_t elem_bytes,
                     size_t owners) {
  const size_t unit = std::max<size_t>(1, kAlignment / elem_bytes);
  const auto channels = std::clamp<size_t>(
      count * elem_bytes / owners / kChannelCosts.ring_bytes_per_channel, 1, context.channels);
  ChannelPlan plan;
  plan.channel_elems = RoundUp(DivUp(count, channels), unit * owners);
  plan.channels = static_cast<uint32_t>(DivUp(count, plan.channel_elems));
  return plan;
}

// Cuts a rank's part of a channel into slices of which `per_part` fill it, and a chunk into
// `per_chunk` of them.
void Cut(const ChannelContext& context, size_t elem_bytes, size_t owners, size_t per_part,
         size_t per_chunk, size_t min_slice_bytes, ChannelPlan& plan) {
  const size_t unit = std::max<size_t>(1, kAlignment / elem_bytes);
  const size_t part = DivUp(plan.channel_elems, owners);
  const size_t wanted = std::max(DivUp(part, per_part), min_slice_bytes / elem_bytes);
  plan.slice_elems = std::min(RoundUp(wanted, unit), context.slot_bytes / elem_bytes);
  plan.chunk_elems = plan.slice_elems * per_chunk;
}

ChannelPlan PlanRing(const ChannelContext& context, Collective collective, size_t count,
                     size_t elem_bytes) {
  const size_t owners = Owners(context, collective);
  ChannelPlan plan = ShareOut(context, count, elem_bytes, owners);
  Cut(context, elem_bytes, owners, kSlicesPerStep, kSlicesPerStep, kMinSliceBytes, plan);
  return plan;
}

// The data goes in several pieces, so that one moves inside hosts while another one passes the
// network.
ChannelPlan PlanTwoLevel(const ChannelContext& context, Collective collective, size_t count,
                         size_t elem_bytes) {
  const size_t owners = Owners(context, collective);
  ChannelPlan plan = ShareOut(context, count, elem_bytes, owners);
  plan.algorithm = Algorithm::kTwoLevel;
  Cut(context, elem_bytes, owners, kChannelCosts.two_level_pieces * kTwoLevelSlices,
      kTwoLevelSlices, kChannelCosts.two_level_slice_bytes, plan);
  return plan;
}

// The data go in slices, each of which is on its way up or down some step of the tree.
ChannelPlan PlanTree(const ChannelContext& context, size_t count, size_t elem_bytes) {
  const size_t unit = std::max<size_t>(1, kAlignment / elem_bytes);
  const auto& costs = kChannelCosts;
  const auto trees =
      std::clamp<size_t>(count * elem_bytes / costs.bytes_per_tree, 1, TreesOf(context));
  ChannelPlan plan;
  plan.algorithm = Algorithm::kTree;
  plan.channel_elems = RoundUp(DivUp(count, trees), unit);
  plan.channels = static_cast<uint32_t>(DivUp(count, plan.channel_elems));
  const size_t wanted =
      std::max(DivUp(plan.channel_elems, costs.tree_slices), costs.tree_slice_bytes / elem_bytes);
  plan.slice_elems = std::min(RoundUp(wanted, unit), context.tree_slot_bytes / elem_bytes);
  plan.chunk_elems = plan.slice_elems;
  return plan;
}

// One block moves the data in rounds, each of which is one slice to every other rank.
ChannelPlan PlanOneShot(const ChannelContext& context, size_t count, size_t elem_bytes) {
  const size_t unit = std::max<size_t>(1, kAlignment / elem_bytes);
  ChannelPlan plan;
  plan.algorithm = Algorithm::kOneShot;
  plan.channel_elems = RoundUp(count, unit);
  plan.slice_elems = std::min(plan.channel_elems, context.pair_slot_bytes / elem_bytes);
  plan.chunk_elems = plan.slice_elems;
  return plan;
}

// A chunk is a slice, and a slot has room for its partial sums, which are not rounded to the type.
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
  plan.in_rank_order = true;
  plan.channel_elems = RoundUp(DivUp(count, channels), unit);
  plan.channels = static_cast<uint32_t>(DivUp(count, plan.channel_elems));
  // There are as many slices as keep the slots of two FIFOs filled.
  const size_t wanted = std::max(DivUp(plan.channel_elems * parts, size_t{2} * kFifoSlots),
                                 kMinSliceBytes / elem_bytes);
  plan.slice_elems = std::min(RoundUp(wanted, unit), context.slot_bytes / sum_bytes / unit * unit);
  plan.chunk_elems = plan.slice_elems;
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------------
// Times

bool IsChain(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast;
}

// Predicts the time of a ring or chain: its steps, each by the network as often as the ring crosses
// from host to host, and the bytes that pass the slowest link.
double RingUs(const ChannelContext& context, Collective collective, double bytes,
              uint32_t channels) {
  const bool all_reduce = collective == Collective::kAllReduce;
  const double n = context.num_ranks;
  const double passed = all_reduce            ? 2 * bytes * (n - 1) / n
                        : IsChain(collective) ? bytes
                                              : bytes * (n - 1);
  const double steps = (all_reduce ? 2 : 1) * (n - 1);
  const double hosts = std::min<double>(context.num_hosts, n);
  const auto& costs = kChannelCosts;
  const double step_us =
      hosts > 1 ? (costs.network_step_us * hosts + costs.window_step_us * (n - hosts)) / n
                : costs.window_step_us;
  double bytes_per_us = costs.channel_bytes_per_us * channels;
  if (context.network_bytes_per_us > 0)
    bytes_per_us = std::min(bytes_per_us, context.network_bytes_per_us);
  return steps * step_us + passed / bytes_per_us;
}

// Ranks send so many bytes to each other one, all at once: each at `bytes_per_us`, and the NICs of
// a host what its `senders` have for ranks of other hosts.
double AllPairsUs(const ChannelContext& context, double bytes, double bytes_per_us, int senders) {
  const double peers = context.num_ranks - 1;
  const auto& costs = kChannelCosts;
  const double step_us = context.num_hosts > 1
                             ? costs.network_step_us + (peers - 1) * costs.network_peer_us
                             : costs.window_step_us;
  double moving_us = peers * bytes / bytes_per_us;
  if (context.network_bytes_per_us > 0) {
    const double leaving = senders * (context.num_ranks - context.most_local_ranks) * bytes;
    moving_us = std::max(moving_us, leaving / context.network_bytes_per_us);
  }
  return step_us + moving_us;
}

// In one shot a single channel does it.
double OneShotUs(const ChannelContext& context, double bytes) {
  return AllPairsUs(context, bytes, kChannelCosts.channel_bytes_per_us, context.most_local_ranks);
}

// Messages take all channels. A Broadcast has one sender.
double ExchangeUs(const ChannelContext& context, Collective collective, double bytes) {
  return AllPairsUs(context, bytes, kChannelCosts.message_bytes_per_us * context.channels,
                    collective == Collective::kBroadcast ? 1 : context.most_local_ranks);
}

// The first slice passes every step, up and down. Of the others each waits for the one before it at
// a head, whose connections move a slice from two others and to one, or the other way round; both
// ways do so at once.
double TreeUs(const ChannelContext& context, const ChannelPlan& plan, size_t count,
              size_t elem_bytes) {
  int depth = 0;
  while (1 << depth < context.num_hosts) ++depth;
  const auto& costs = kChannelCosts;
  const size_t part = std::min(count, plan.channel_elems);
  const auto slices = static_cast<double>(DivUp(part, plan.slice_elems));
  const double slice_us =
      static_cast<double>(std::min(part, plan.slice_elems) * elem_bytes) / costs.tree_bytes_per_us;
  const double steps_us = 2 * (depth * (costs.network_step_us + slice_us) +
                               (context.most_local_ranks - 1) * costs.window_step_us);
  double moving_us = (slices - 1) * slice_us * std::min(context.num_hosts, 3);
  if (context.network_bytes_per_us > 0)
    moving_us = std::max(
        moving_us, 2 * static_cast<double>(count * elem_bytes) / context.network_bytes_per_us);
  return steps_us + moving_us;
}

// The first piece waits for every step; of the others, the slower of the two wires is what counts.
double TwoLevelUs(const ChannelContext& context, Collective collective, double bytes,
                  uint32_t channels) {
  const bool all_reduce = collective == Collective::kAllReduce;
  const double hosts = context.num_hosts, local = context.local_ranks;
  const double ways = all_reduce ? 2 : 1;
  // A rank has so much of the data: all ranks' parts together pass from host to host.
  const double part = all_reduce ? bytes / (hosts * local) : bytes;
  const auto& costs = kChannelCosts;
  const double steps_us =
      ways * ((hosts - 1) * costs.network_step_us + hosts * (local - 1) * costs.window_step_us);
  const double rail = ways * (hosts - 1) * part;
  double network_us = rail / (costs.channel_bytes_per_us * channels);
  if (context.network_bytes_per_us > 0)
    network_us = std::max(network_us, rail * local / context.network_bytes_per_us);
  const double window_us =
      ways * hosts * (local - 1) * part / (costs.channel_window_bytes_per_us * channels);
  return steps_us + std::max(network_us, window_us);
}

// Returns whether `algorithm` may run the collective: it serves, keeps the order, and NCCL_ALGO
// leaves it.
bool Serves(const ChannelContext& context, Algorithm algorithm, Collective collective,
            ReductionOrder order) {
  const uint32_t allowed = context.allowed_algorithms[static_cast<size_t>(collective)];
  if (allowed != 0 && (allowed & Bit(algorithm)) == 0) return false;
  const auto rows = ChannelAlgorithms();
  return std::any_of(rows.begin(), rows.end(), [&](const AlgorithmRow& row) {
    return row.algorithm == algorithm && row.Serves(collective) &&
           (!row.Needs(Need::kEqualHosts) || (context.local_ranks > 1 && context.num_hosts > 1)) &&
           (!row.Needs(Need::kFewRanks) || context.num_ranks <= kMostOneShotRanks) &&
           (!row.Needs(Need::kSeveralHosts) || context.num_hosts > 1) &&
           (row.where != Where::kChannelPairs || context.pair_slot_bytes > 0) &&
           (row.where != Where::kChannelTrees || TreesOf(context) > 0) &&
           KeepsOrder(row, order, context.num_ranks);
  });
}

// A plan, and how long it takes.
struct TimedPlan {
  ChannelPlan plan;
  double us = 0;
};

TimedPlan Choose(const ChannelContext& context, Collective collective, size_t count, DataType type,
                 ReductionOrder order) {
  const size_t elem_bytes = SizeOf(type);
  const auto bytes = static_cast<double>(count * elem_bytes);
  // Between two ranks there is one addition, which has the same result both ways round.
  const bool in_rank_order = order != ReductionOrder::kAny && context.num_ranks > 2;
  TimedPlan ring;
  ring.plan = in_rank_order ? PlanRankOrder(context, collective, count, type)
                            : PlanRing(context, collective, count, elem_bytes);
  ring.us = RingUs(context, collective, bytes, ring.plan.channels);
  std::vector<TimedPlan> plans;
  if (Serves(context, Algorithm::kRing, collective, order)) plans.push_back(ring);
  if (Serves(context, Algorithm::kOneShot, collective, order))
    plans.push_back({PlanOneShot(context, count, elem_bytes), OneShotUs(context, bytes)});
  if (Serves(context, Algorithm::kExchange, collective, order))
    plans.push_back({{.algorithm = Algorithm::kExchange}, ExchangeUs(context, collective, bytes)});
  if (Serves(context, Algorithm::kTwoLevel, collective, order)) {
    TimedPlan& two_level = plans.emplace_back();
    two_level.plan = PlanTwoLevel(context, collective, count, elem_bytes);
    two_level.us = TwoLevelUs(context, collective, bytes, two_level.plan.channels);
  }
  if ((plans.empty() || context.num_ranks >= kFewestTreeRanks) &&
      Serves(context, Algorithm::kTree, collective, order)) {
    TimedPlan& tree = plans.emplace_back();
    tree.plan = PlanTree(context, count, elem_bytes);
    tree.us = TreeUs(context, tree.plan, count, elem_bytes);
  }
  if (plans.empty() && context.allowed_algorithms[static_cast<size_t>(collective)] != 0) {
    ChannelContext unrestricted = context;
    unrestricted.allowed_algorithms = {};
    return Choose(unrestricted, collective, count, type, order);
  }
  const auto least =
      std::min_element(plans.begin(), plans.end(),
                       [](const TimedPlan& a, const TimedPlan& b) { return a.us < b.us; });
  return least == plans.end() ? ring : *least;
}

}  // namespace

ChannelPlan PlanChannels(const ChannelContext& context, Collective collective, size_t count,
                         DataType type, ReductionOrder order) {
  return Choose(context, collective, count, type, order).plan;
}

double PredictChannelsUs(const ChannelContext& context, Collective collective, size_t count,
                         DataType type, ReductionOrder order) {
  switch (collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
      return Choose(context, collective, count, type, order).us;
    default:
      break;
  }
  // Messages go down chains of two, one after another.
  ChannelContext pair = context;
  pair.num_ranks = 2;
  const int messages = collective == Collective::kSendRecv ? 1 : context.num_ranks - 1;
  return PredictChannelsUs(pair, Collective::kBroadcast,
                           count * SizeOf(type) * static_cast<size_t>(messages), DataType::kUint8);
}

}  // namespace tutti
