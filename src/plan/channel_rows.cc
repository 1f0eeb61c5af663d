// The rows of GPUs that channels join (several hosts, more than 16 ranks): how each algorithm is
// cut into channels, chunks and slices, and how long the algorithm takes by ChannelCosts
// (plan/cost_table.h).

#include <algorithm>

#include "base/rounding.h"
#include "connection/fifo_layout.h"
#include "plan/rows.h"

namespace tutti::channel_rows {
namespace {

// The slices of a chunk of two levels. With two slices a FIFO holds four chunks, and the schedule
// needs three of them (kernels/two_level.h).
constexpr size_t kTwoLevelSlices = 2;
static_assert(kFifoSlots >= 3 * kTwoLevelSlices);

// Channels and slices begin at whole lines.
size_t Unit(const Question& q) { return std::max<size_t>(1, kGpuLineBytes / q.elem_bytes()); }

uint32_t ChannelsOf(const PlanContext& c, const Question& q) {
  return q.most_channels == 0 ? c.channel.channels : std::min(c.channel.channels, q.most_channels);
}

// Returns how many trees an AllReduce may use. A tree has a channel for each direction.
uint32_t TreesOf(const PlanContext& c, const Question& q) {
  return std::min(c.channel.trees, ChannelsOf(c, q) / 2);
}

// Returns the number of parts, one for each rank, into which the collective cuts its data.
size_t Owners(const PlanContext& c, const Question& q) {
  return q.collective == Collective::kAllReduce ? static_cast<size_t>(c.num_ranks) : 1;
}

// Shares the elements out over `usual` channels, or as many as a tuner wants, but at most `most`.
// The ends are at multiples of `unit` elements.
void ShareOut(const PlanQuestion& q, size_t usual, uint32_t most, size_t unit, Plan& plan) {
  const size_t wanted =
      q.advised_channels == 0 ? usual : q.advised_channels / ChannelsPerCut(*plan.row);
  plan.channel_elems = RoundUp(DivUp(q.count, std::clamp<size_t>(wanted, 1, most)), unit);
  plan.channels = static_cast<uint32_t>(DivUp(q.count, plan.channel_elems));
}

// Cuts a rank's part of a channel into `per_part` slices, and makes chunks of `per_chunk` slices.
void CutParts(const PlanContext& c, const PlanQuestion& q, size_t per_part, size_t per_chunk,
              size_t min_slice_bytes, Plan& plan) {
  const size_t owners = Owners(c, q);
  ShareOut(q, q.count * q.elem_bytes() / owners / kChannelCosts.ring_bytes_per_channel,
           ChannelsOf(c, q), Unit(q) * owners, plan);
  const size_t part = DivUp(plan.channel_elems, owners);
  const size_t wanted = std::max(DivUp(part, per_part), min_slice_bytes / q.elem_bytes());
  plan.slot_elems = c.channel.slot_bytes / q.elem_bytes();
  plan.slice_elems = std::min(RoundUp(wanted, Unit(q)), plan.slot_elems);
  plan.chunk_elems = plan.slice_elems * per_chunk;
}

// Predicts an exchange in which every rank sends `bytes` to each rank at once. A rank sends at
// `bytes_per_us`; the NICs of a host send the data of its `senders` for ranks of other hosts.
double AllPairsUs(const PlanContext& c, double bytes, double bytes_per_us, int senders) {
  const double peers = c.num_ranks - 1;
  const auto& costs = kChannelCosts;
  const double step_us = c.hosts.count > 1
                             ? costs.network_step_us + (peers - 1) * costs.network_peer_us
                             : costs.window_step_us;
  double moving_us = peers * bytes / bytes_per_us;
  if (c.channel.network_bytes_per_us > 0) {
    const double leaving = senders * (c.num_ranks - c.hosts.most) * bytes;
    moving_us = std::max(moving_us, leaving / c.channel.network_bytes_per_us);
  }
  return step_us + moving_us;
}

}  // namespace

Fit CutRing(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  CutParts(c, q, kSlicesPerStep, kSlicesPerStep, kMinSliceBytes, plan);
  return Fit::kYes;
}

// A chunk is a slice, and a slot has room for the slice's partial sums, which are not rounded to
// the element's type. The slices are short enough to keep the slots of two FIFOs filled. Between
// two ranks no row for the order is needed, because a single addition has the same result both ways
// round.
Fit CutRankOrder(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  if (q.order == ReductionOrder::kAny || c.num_ranks <= 2) return Fit::kNo;
  const size_t elem = q.elem_bytes();
  const size_t sum_bytes = IsFloat(q.type) ? std::max(elem, sizeof(float)) : elem;
  const size_t parts =
      q.collective == Collective::kReduceScatter ? static_cast<size_t>(c.num_ranks) : 1;
  ShareOut(q, q.count * parts * elem / kChannelCosts.ring_bytes_per_channel, ChannelsOf(c, q),
           Unit(q), plan);
  const size_t wanted =
      std::max(DivUp(plan.channel_elems * parts, size_t{2} * kFifoSlots), kMinSliceBytes / elem);
  plan.slice_elems =
      std::min(RoundUp(wanted, Unit(q)), c.channel.slot_bytes / sum_bytes / Unit(q) * Unit(q));
  plan.chunk_elems = plan.slice_elems;
  return Fit::kYes;
}

// Cuts the data into several pieces, because one piece should move inside hosts while the next
// piece passes the network.
Fit CutRails(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  CutParts(c, q, kChannelCosts.two_level_pieces * kTwoLevelSlices, kTwoLevelSlices,
           kChannelCosts.two_level_slice_bytes, plan);
  return Fit::kYes;
}

// Cuts the data into slices that are under way on different steps of the tree at once. Among few
// ranks a tuner may choose trees.
Fit CutTrees(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  if (TreesOf(c, q) == 0) return Fit::kNo;
  const auto& costs = kChannelCosts;
  const size_t elem = q.elem_bytes();
  ShareOut(q, q.count * elem / costs.bytes_per_tree, TreesOf(c, q), Unit(q), plan);
  const size_t wanted =
      std::max(DivUp(plan.channel_elems, costs.tree_slices), costs.tree_slice_bytes / elem);
  plan.slot_elems = c.channel.tree_slot_bytes / elem;
  plan.slice_elems = std::min(RoundUp(wanted, Unit(q)), plan.slot_elems);
  plan.chunk_elems = plan.slice_elems;
  if (c.num_ranks >= kFewestTreeRanks) return Fit::kYes;
  return q.IsAdvised(plan.algorithm()) ? Fit::kIfAdvised : Fit::kLastResort;
}

// A single block moves the data in rounds. In a round a rank sends a slice to every rank.
Fit CutOneShot(const PlanContext& c, const PlanQuestion& q, Plan& plan) {
  if (c.channel.pair_slot_bytes == 0) return Fit::kNo;
  plan.channel_elems = RoundUp(q.count, Unit(q));
  plan.slice_elems = std::min(plan.channel_elems, c.channel.pair_slot_bytes / q.elem_bytes());
  plan.chunk_elems = plan.slice_elems;
  return Fit::kYes;
}

// Each message is cut by its own length.
Fit CutMessages(const PlanContext& c, const PlanQuestion&, Plan&) {
  return c.channel.pair_slot_bytes > 0 ? Fit::kYes : Fit::kNo;
}

// A ring or chain takes the time of its steps and the time of the bytes on the slowest link. Steps
// from host to host go by the network, all other steps through windows.
double RingUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const bool all_reduce = q.collective == Collective::kAllReduce;
  const bool chain = IsChain(q.collective);
  const double n = c.num_ranks;
  const double bytes = q.bytes();
  const double passed = all_reduce ? 2 * bytes * (n - 1) / n : chain ? bytes : bytes * (n - 1);
  const double steps = (all_reduce ? 2 : 1) * (n - 1);
  const double hosts = std::min<double>(c.hosts.count, n);
  const auto& costs = kChannelCosts;
  const double step_us =
      hosts > 1 ? (costs.network_step_us * hosts + costs.window_step_us * (n - hosts)) / n
                : costs.window_step_us;
  double bytes_per_us = costs.channel_bytes_per_us * plan.channels;
  if (c.channel.network_bytes_per_us > 0)
    bytes_per_us = std::min(bytes_per_us, c.channel.network_bytes_per_us);
  return steps * step_us + passed / bytes_per_us;
}

// A one-shot exchange uses a single channel.
double OneShotUs(const PlanContext& c, const PlanQuestion& q, const Plan&) {
  return AllPairsUs(c, q.bytes(), kChannelCosts.channel_bytes_per_us, c.hosts.most);
}

// Messages use all channels. A Broadcast has a single sender.
double MessagesUs(const PlanContext& c, const PlanQuestion& q, const Plan&) {
  return AllPairsUs(c, q.bytes(), kChannelCosts.message_bytes_per_us * ChannelsOf(c, q),
                    q.collective == Collective::kBroadcast ? 1 : c.hosts.most);
}

// The first slice passes every step, up and down. Each later slice waits for the slice before it at
// the head of a host. The connections of a head move a slice from two heads and to a third, or the
// other way round, and both directions are busy at once.
double TreesUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const double depth = LogSteps(c.hosts.count);
  const auto& costs = kChannelCosts;
  const size_t part = std::min(q.count, plan.channel_elems);
  const auto slices = static_cast<double>(DivUp(part, plan.slice_elems));
  const double slice_us = static_cast<double>(std::min(part, plan.slice_elems) * q.elem_bytes()) /
                          costs.tree_bytes_per_us;
  const double steps_us =
      2 * (depth * (costs.network_step_us + slice_us) + (c.hosts.most - 1) * costs.window_step_us);
  double moving_us = (slices - 1) * slice_us * std::min(c.hosts.count, 3);
  if (c.channel.network_bytes_per_us > 0)
    moving_us = std::max(moving_us, 2 * q.bytes() / c.channel.network_bytes_per_us);
  return steps_us + moving_us;
}

// The first piece waits for every step. For all later pieces the slower of the two wires counts.
double RailsUs(const PlanContext& c, const PlanQuestion& q, const Plan& plan) {
  const bool all_reduce = q.collective == Collective::kAllReduce;
  const double hosts = c.hosts.count, local = c.channel.local_ranks;
  const double ways = all_reduce ? 2 : 1;
  // The bytes of one rank's part. The parts of all ranks of a host pass from host to host.
  const double part = all_reduce ? q.bytes() / (hosts * local) : q.bytes();
  const auto& costs = kChannelCosts;
  const double steps_us =
      ways * ((hosts - 1) * costs.network_step_us + hosts * (local - 1) * costs.window_step_us);
  const double rail = ways * (hosts - 1) * part;
  double network_us = rail / (costs.channel_bytes_per_us * plan.channels);
  if (c.channel.network_bytes_per_us > 0)
    network_us = std::max(network_us, rail * local / c.channel.network_bytes_per_us);
  const double window_us =
      ways * hosts * (local - 1) * part / (costs.channel_window_bytes_per_us * plan.channels);
  return steps_us + std::max(network_us, window_us);
}

}  // namespace tutti::channel_rows
