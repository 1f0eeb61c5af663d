#include "gpu/channel_rings.h"

#include <algorithm>

#include "base/rounding.h"
#include "connection/fifo_layout.h"
#include "kernels/rank_order.h"
#include "kernels/ring.h"
#include "plan/ranks_by_host.h"

namespace tutti {
namespace {

int PlaceIn(std::span<const int> order, int value) {
  return static_cast<int>(std::find(order.begin(), order.end(), value) - order.begin());
}

ChannelTraffic CountTwoLevels(const Plan& plan, Collective collective,
                              const kernels::TwoLevelWork& work) {
  kernels::TwoLevelCounting count(plan.slice_elems);
  if (collective == Collective::kAllGather)
    kernels::TwoLevelAllGather(count, work);
  else
    kernels::TwoLevelReduction(count, collective, work);
  return {count.host_sent(), count.host_received(), count.rail_sent(), count.rail_received()};
}

ChannelTraffic CountRing(const Plan& plan, Collective collective, const kernels::RingWork& work) {
  kernels::CountingPrimitives count(plan.slice_elems);
  if (InRankOrder(plan))
    kernels::RankOrderReduction(count, collective, work, kFifoSlots);
  else if (collective == Collective::kAllGather || collective == Collective::kBroadcast)
    kernels::RingMove(count, collective, work);
  else
    kernels::RingReduction(count, collective, work);
  return {count.sent(), count.received(), {}, {}};
}

}  // namespace

ChannelRings::ChannelRings(std::span<const uint64_t> hosts, int rank,
                           const std::vector<std::vector<int>>& rings)
    : rank_(rank), num_ranks_(static_cast<int>(hosts.size())) {
  for (const std::vector<int>& ring : rings) {
    ring_index_.push_back(PlaceIn(ring, rank));
    tables_.insert(tables_.end(), ring.begin(), ring.end());
  }
  // Where hosts have different numbers of ranks, tables_ has rings only, without a grid.
  const std::vector<std::vector<int>> ranks = RanksByHost(hosts);
  num_hosts_ = static_cast<int>(ranks.size());
  const size_t local = ranks[0].size();
  if (std::any_of(ranks.begin(), ranks.end(), [&](const auto& of) { return of.size() != local; }))
    return;
  local_ranks_ = static_cast<int>(local);
  for (size_t host = 0; host < ranks.size(); ++host) {
    tables_.insert(tables_.end(), ranks[host].begin(), ranks[host].end());
    const int place = PlaceIn(ranks[host], rank);
    if (place == local_ranks_) continue;
    host_ = static_cast<int>(host);
    local_ = place;
  }
  const std::vector<int>& here = ranks[static_cast<size_t>(host_)];
  for (const std::vector<int>& ring : rings) {
    std::vector<int> order;
    for (const int r : ring)
      if (const int place = PlaceIn(here, r); place < local_ranks_) order.push_back(place);
    host_ring_index_.push_back(PlaceIn(order, local_));
    tables_.insert(tables_.end(), order.begin(), order.end());
  }
}

RingView ChannelRings::RingOf(uint32_t channel, const int* tables) const {
  return {ring_index_[channel], num_ranks_, tables + RingAt(channel)};
}

kernels::TwoLevelView ChannelRings::LevelsOf(uint32_t channel, const int* tables) const {
  return {.host = host_,
          .num_hosts = num_hosts_,
          .local = local_,
          .ring = {host_ring_index_[channel], local_ranks_, tables + HostRingAt(channel)},
          .ranks = tables + GridAt()};
}

int ChannelRings::RingNeighbour(uint32_t channel, int way) const {
  const RingView ring = RingOf(channel, tables_.data());
  return ring.At(ring.index + way);
}

int ChannelRings::HostNeighbour(uint32_t channel, int way) const {
  const kernels::TwoLevelView levels = LevelsOf(channel, tables_.data());
  return levels.Rank(host_, levels.ring.At(levels.ring.index + way));
}

int ChannelRings::RailNeighbour(int way) const {
  return LevelsOf(0, tables_.data()).Rank((host_ + num_hosts_ + way) % num_hosts_, local_);
}

ChannelNeighbours NeighboursOf(const ChannelRings& rings, const Plan& plan, uint32_t channel,
                               int way) {
  if (plan.algorithm() == Algorithm::kTwoLevel)
    return {rings.HostNeighbour(channel, way), rings.RailNeighbour(way)};
  return {rings.RingNeighbour(channel, way), -1};
}

ChannelTraffic CountChannel(const ChannelRings& rings, const Plan& plan, Collective collective,
                            size_t count, int root, uint32_t channel) {
  const WorkShape shape = {ClampChunk(channel * plan.channel_elems, plan.channel_elems, count),
                           plan.chunk_elems, root};
  const int* const tables = rings.tables().data();
  if (plan.algorithm() == Algorithm::kTwoLevel)
    return CountTwoLevels(
        plan, collective,
        {.view = rings.LevelsOf(channel, tables), .shape = shape, .stride = count});
  return CountRing(plan, collective,
                   {.ring = rings.RingOf(channel, tables), .shape = shape, .stride = count});
}

}  // namespace tutti
