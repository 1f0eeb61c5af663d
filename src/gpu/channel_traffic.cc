#include "gpu/channel_traffic.h"

#include "connection/fifo_layout.h"
#include "kernels/primitives.h"
#include "kernels/rank_order.h"
#include "kernels/ring.h"

namespace tutti {
namespace {

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

ChannelNeighbours NeighboursOf(const ChannelRings& rings, const Plan& plan, uint32_t channel,
                               int way) {
  if (plan.algorithm() == Algorithm::kTwoLevel)
    return {rings.HostNeighbour(channel, way), rings.RailNeighbour(way)};
  return {rings.RingNeighbour(channel, way), -1};
}

kernels::MeshCounting CountOneShot(const Plan& plan, Collective collective, size_t count, int root,
                                   int rank, int num_ranks) {
  kernels::MeshCounting counting(rank, num_ranks);
  kernels::MeshOneShotReduction(counting, MeshShapeOf({count, plan.chunk_elems, root}),
                                kernels::ReductionOf(collective));
  return counting;
}

// Every link of a tree passes each slice of the tree's elements once.
kernels::Traffic CountTree(const Plan& plan, size_t count, uint32_t tree) {
  const size_t elems = ClampChunk(tree * plan.channel_elems, plan.channel_elems, count);
  const uint64_t slices = DivUp(elems, plan.slice_elems);
  return {slices, slices, elems};
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
