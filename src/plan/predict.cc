#include "plan/predict.h"

#include "plan/channel_plan.h"
#include "plan/choose.h"
#include "plan/mesh.h"
#include "plan/mesh_limits.h"

namespace tutti {
namespace {

// The multiprocessors of an H100 or H200. Files of machines do not say how many a GPU has.
constexpr int kMultiprocessors = 132;

// Describes the job as a communicator of hosts would: by the bandwidth of its rings, inside a host
// or between hosts.
PlanContext HostContext(const MachineJob& job) {
  PlanContext context;
  context.num_ranks = job.num_ranks();
  context.one_host = job.hosts == 1;
  context.host_gbps = job.hosts == 1 ? job.ring.TotalGbps() : 0;
  context.network_gbps = job.hosts == 1 ? 0 : job.ring.TotalGbps();
  context.ranks_per_nic = job.ranks_per_host;
  return context;
}

Prediction PredictHosts(const MachineJob& job, Collective collective, size_t count,
                        size_t elem_bytes) {
  const Choice choice = Choose(HostContext(job), collective, count, elem_bytes);
  return {choice.algorithm, choice.protocol, choice.time_us};
}

Prediction PredictGpus(const MachineJob& job, Collective collective, size_t count,
                       size_t elem_bytes) {
  MeshContext context = MeshContextFor(job.num_ranks(), kMultiprocessors, GpuReach::kNvlink);
  context.link_bytes_per_us = job.ring.TotalGbps() * 1e3;
  if (job.ring.kind_intra > topology::PathKind::kC2c) context.ll128_slot_bytes = 0;
  const MeshChoice choice = ChooseMesh(context, collective, count, elem_bytes);
  return {RowOf(choice.algorithm).algorithm, choice.protocol,
          PredictMeshUs(context, collective, count, elem_bytes)};
}

// The number of channels and the lengths of slots follow from processors and settings, which files
// do not have: these are the most, and the usual ones.
constexpr size_t kSlotBytes = 512 << 10;
constexpr size_t kPairSlotBytes = 128 << 10;
constexpr size_t kTreeSlotBytes = 64 << 10;

Prediction PredictGpusOfHosts(const MachineJob& job, Collective collective, size_t count,
                              size_t elem_bytes) {
  const ChannelContext context = {.num_ranks = job.num_ranks(),
                                  .num_hosts = job.hosts,
                                  .channels = kMostGpuChannels,
                                  .slot_bytes = kSlotBytes,
                                  .pair_slot_bytes = kPairSlotBytes,
                                  .network_bytes_per_us = job.ring.TotalGbps() * 1e3,
                                  .local_ranks = job.ranks_per_host,
                                  .trees = kMostGpuChannels / 2,
                                  .tree_slot_bytes = kTreeSlotBytes,
                                  .most_local_ranks = job.ranks_per_host,
                                  .allowed_algorithms = {}};
  const size_t bytes = count * elem_bytes;
  const bool has_plan =
      collective == Collective::kAllReduce || collective == Collective::kAllGather ||
      collective == Collective::kReduceScatter || collective == Collective::kReduce;
  const Algorithm algorithm =
      has_plan ? PlanChannels(context, collective, bytes, DataType::kUint8).algorithm
               : Algorithm::kRing;
  return {algorithm, Protocol::kSimple,
          PredictChannelsUs(context, collective, bytes, DataType::kUint8)};
}

}  // namespace

std::optional<Prediction> Predict(const MachineJob& job, Collective collective, size_t count,
                                  size_t elem_bytes) {
  if (job.num_ranks() < 2 || job.ring.channels.empty()) return std::nullopt;
  if (!job.gpus) return PredictHosts(job, collective, count, elem_bytes);
  if (job.hosts == 1) return PredictGpus(job, collective, count, elem_bytes);
  return PredictGpusOfHosts(job, collective, count, elem_bytes);
}

}  // namespace tutti
