#include "plan/predict.h"

#include "plan/mesh.h"
#include "plan/mesh_limits.h"

namespace tutti {
namespace {

// The multiprocessors of an H100 or H200. Files about machines do not tell the number of a GPU's
// multiprocessors.
constexpr int kMultiprocessors = 132;

// Describes the job as a communicator of ranks on hosts would: by the bandwidth of its rings,
// inside a host or between hosts.
PlanContext HostContext(const MachineJob& job) {
  PlanContext context;
  context.host.one_host = job.hosts == 1;
  context.host.host_gbps = job.hosts == 1 ? job.ring.TotalGbps() : 0;
  context.host.network_gbps = job.hosts == 1 ? 0 : job.ring.TotalGbps();
  context.host.ranks_per_nic = job.ranks_per_host;
  return context;
}

PlanContext MeshContext(const MachineJob& job) {
  PlanContext context = MeshContextFor(job.num_ranks(), kMultiprocessors, GpuReach::kNvlink);
  context.mesh.link_bytes_per_us = job.ring.TotalGbps() * 1e3;
  if (job.ring.kind_intra > topology::PathKind::kC2c) context.mesh.ll128_slot_bytes = 0;
  return context;
}

// The number of channels and the lengths of slots depend on processors and settings. Files about
// machines have neither, and the function takes the most channels and the usual lengths.
PlanContext ChannelContext(const MachineJob& job) {
  PlanContext context;
  context.kind = RankKind::kChannels;
  context.hosts.count = job.hosts;
  context.hosts.most = job.ranks_per_host;
  context.channel = {.channels = kMostGpuChannels,
                     .slot_bytes = 512 << 10,
                     .pair_slot_bytes = 128 << 10,
                     .network_bytes_per_us = job.ring.TotalGbps() * 1e3,
                     .local_ranks = job.ranks_per_host,
                     .trees = kMostGpuChannels / 2,
                     .tree_slot_bytes = 64 << 10};
  return context;
}

}  // namespace

std::optional<Prediction> Predict(const MachineJob& job, Collective collective, size_t count,
                                  DataType type) {
  if (job.num_ranks() < 2 || job.ring.channels.empty()) return std::nullopt;
  PlanContext context = !job.gpus        ? HostContext(job)
                        : job.hosts == 1 ? MeshContext(job)
                                         : ChannelContext(job);
  context.num_ranks = job.num_ranks();
  const Question question = {.collective = collective, .count = count, .type = type};
  const double us = PredictUs(context, question);
  if (!Serves(context.kind, collective)) return Prediction{Algorithm::kExchange, {}, us};
  const Plan plan = MakePlan(context, question);
  return Prediction{plan.algorithm(), plan.protocol, us};
}

}  // namespace tutti
