#include "plan/predict.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "connection/inline_bytes.h"
#include "plan/choose.h"

namespace tutti {
namespace {

using topology::Channels;

// GPUs move what they send and what they receive at once, so unlike ExtentOf only one of the two
// counts.
Extent GpuExtent(Collective collective, Algorithm algorithm, int num_ranks, double bytes) {
  const double n = num_ranks;
  switch (algorithm) {
    case Algorithm::kTree:
      return {0, 0, 2 * bytes};  // steps depend on the hosts: see GpuSteps
    case Algorithm::kOneShot:
      return {1, 1, (n - 1) * bytes};
    case Algorithm::kTwoShot:
      return {2, 2, 2 * bytes * (n - 1) / n};
    case Algorithm::kExchange:
      return {1, 1, (n - 1) * bytes};
    default: {
      const Extent ring = ExtentOf(collective, algorithm, num_ranks, bytes);
      const bool of_parts = collective != Collective::kAllReduce &&
                            collective != Collective::kBroadcast &&
                            collective != Collective::kReduce;
      return {ring.steps, ring.waits, of_parts ? (n - 1) * bytes : ring.bytes};
    }
  }
}

bool AppliesOnGpus(const MachineJob& job, Collective collective, Algorithm algorithm) {
  const bool personal = collective == Collective::kAlltoAll || collective == Collective::kGather ||
                        collective == Collective::kScatter || collective == Collective::kSendRecv;
  switch (algorithm) {
    case Algorithm::kRing:
      return !personal;
    case Algorithm::kTree:
    case Algorithm::kTwoShot:
      return collective == Collective::kAllReduce &&
             (algorithm == Algorithm::kTree || job.hosts == 1);
    case Algorithm::kOneShot:
      return job.hosts == 1 &&
             (collective == Collective::kAllReduce || collective == Collective::kAllGather ||
              collective == Collective::kReduceScatter);
    case Algorithm::kExchange:
      return personal;
    default:
      return false;
  }
}

// Of all steps those that leave a host. A ring leaves each host once; a tree over the hosts is as
// deep as their number has binary digits, and inside a host its chain passes every rank.
struct GpuSteps {
  double inside = 0;
  double between = 0;
};

GpuSteps StepsOf(const MachineJob& job, Algorithm algorithm, const Extent& extent) {
  if (algorithm == Algorithm::kTree) {
    const double depth = std::bit_width(static_cast<unsigned>(job.hosts - 1));
    return {2.0 * (job.ranks_per_host - 1), 2 * depth};
  }
  if (job.hosts == 1) return {extent.steps, 0};
  const double between = extent.steps * (job.hosts - 1) / (job.num_ranks() - 1);
  return {extent.steps - between, between};
}

void AddGpu(const MachineJob& job, Collective collective, double bytes, Algorithm algorithm,
            Protocol protocol, std::vector<Prediction>& all) {
  const Channels& channels = algorithm == Algorithm::kTree ? job.tree : job.ring;
  const CostRow* const inside = FindCost(WireOf(channels.kind_intra), algorithm, protocol);
  const CostRow* const between = job.hosts > 1 ? FindCost(Wire::kNic, algorithm, protocol) : inside;
  if (channels.channels.empty() || inside == nullptr || between == nullptr) return;
  const Extent extent = GpuExtent(collective, algorithm, job.num_ranks(), bytes);
  const GpuSteps steps = StepsOf(job, algorithm, extent);
  const CostRow& slower = job.hosts > 1 && between->part < inside->part ? *between : *inside;
  double us = CostUs(slower, {0, 0, extent.bytes}, channels.TotalGbps(), false) - slower.start_us;
  us += std::max(inside->start_us, between->start_us) + steps.inside * inside->step_us +
        steps.between * between->step_us + (job.in_graph ? 0 : kLaunchUs);
  all.push_back({algorithm, protocol, us, std::max(inside->source, between->source)});
}

PlanContext HostContext(const MachineJob& job) {
  PlanContext context;
  context.num_ranks = job.num_ranks();
  context.one_host = job.hosts == 1;
  context.host_gbps = job.hosts == 1 ? job.ring.TotalGbps() : 0;
  context.network_gbps = job.hosts == 1 ? 0 : job.ring.TotalGbps();
  context.ranks_per_port = job.ranks_per_host;
  return context;
}

}  // namespace

std::vector<Prediction> PredictAll(const MachineJob& job, Collective collective, double bytes) {
  std::vector<Prediction> all;
  if (job.num_ranks() < 2) return all;
  for (int a = 0; a < kNumAlgorithms; ++a) {
    const auto algorithm = static_cast<Algorithm>(a);
    if (!job.gpus) {
      const double us = PredictUs(HostContext(job), collective, algorithm, bytes);
      const auto protocol = bytes <= kInlineBytes ? Protocol::kLL : Protocol::kSimple;
      if (std::isfinite(us)) all.push_back({algorithm, protocol, us, CostSource::kCostBench});
      continue;
    }
    if (!AppliesOnGpus(job, collective, algorithm)) continue;
    for (const auto protocol : {Protocol::kLL, Protocol::kLL128, Protocol::kSimple})
      AddGpu(job, collective, bytes, algorithm, protocol, all);
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Prediction& a, const Prediction& b) { return a.us < b.us; });
  return all;
}

}  // namespace tutti
