#include "plan/cost_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/crossings.h"

namespace tutti {
namespace {

using enum Wire;
using enum Algorithm;
using enum Protocol;
using enum CostSource;

constexpr CostRow kTable[] = {
    // wire, algorithm, protocol, start us, step us, most GB/s, part, source
    {kSharedMemory, kRing, kLL, 0, 0.23, 0.75, 1, kCostBench},
    {kSharedMemory, kRing, kSimple, 0, 0.33, 6.8, 1, kCostBench},
    {kSharedMemory, kTree, kLL, 0, 0.54, 1.1, 1, kCostBench},
    {kSharedMemory, kTree, kSimple, 0, 0.59, 11.4, 1, kCostBench},
    {kSharedMemory, kRecursiveDoubling, kLL, 0, 0.5, 0.7, 1, kCostBench},
    {kSharedMemory, kRecursiveDoubling, kSimple, 0, 0.51, 5.5, 1, kCostBench},
    {kSharedMemory, kTwoLevel, kLL, 0, 0.5, 0.7, 1, kCostBench},
    {kSharedMemory, kTwoLevel, kSimple, 0, 0.51, 5.5, 1, kCostBench},
    {kSharedMemory, kOneShot, kLL, 0, 0.4, 11.5, 1, kCostBench},
    {kSharedMemory, kOneShot, kSimple, 0, 0.4, 11.5, 1, kCostBench},
    {kSharedMemory, kTwoShot, kLL, 0, 0.37, 10.4, 1, kCostBench},
    {kSharedMemory, kTwoShot, kSimple, 0, 0.37, 10.4, 1, kCostBench},
    {kSharedMemory, kExchange, kLL, 0, 0.74, 10.4, 1, kCostBench},
    {kSharedMemory, kExchange, kSimple, 0, 0.74, 10.4, 1, kCostBench},
    {kSharedMemory, kPull, kSimple, 0, 0.5, 13, 1, kCostBench},
    {kKernelCopy, kPull, kSimple, 0, 0.5, 4, 1, kShmBench},
    {kTcp, kRing, kLL, 0, 4.9, 0.018, 1, kCostBench},
    {kTcp, kRing, kSimple, 0, 5.4, 2.6, 1, kCostBench},
    {kTcp, kTree, kLL, 0, 7.4, 0.027, 1, kCostBench},
    {kTcp, kTree, kSimple, 0, 7, 3.8, 1, kCostBench},
    {kTcp, kRecursiveDoubling, kLL, 0, 5, 0.01, 1, kCostBench},
    {kTcp, kRecursiveDoubling, kSimple, 0, 4.9, 2.2, 1, kCostBench},
    {kTcp, kRecursiveHalving, kLL, 0, 5, 0.01, 1, kSocketsBench},
    {kTcp, kRecursiveHalving, kSimple, 0, 5.4, 1.1, 1, kSocketsBench},
    {kTcp, kTwoLevel, kLL, 0, 5, 0.01, 1, kCostBench},
    {kTcp, kTwoLevel, kSimple, 0, 4.9, 2.2, 1, kCostBench},
    {kTcp, kOneShot, kLL, 0, 5, 0.01, 1, kCostBench},
    {kTcp, kOneShot, kSimple, 0, 5, 5.3, 1, kCostBench},
    {kTcp, kTwoShot, kLL, 0, 5, 0.01, 1, kCostBench},
    {kTcp, kTwoShot, kSimple, 0, 5, 4.8, 1, kCostBench},
    {kTcp, kExchange, kLL, 0, 6.8, 4.8, 1, kCostBench},
    {kTcp, kExchange, kSimple, 0, 6.8, 4.8, 1, kCostBench},
};

// The part of a round that each further rank adds: a rank with a stage reads the flag of every
// rank, a cache line from another core, 0.1 us. The number is an estimate; more than two ranks with
// a core each were not measured.
constexpr double kFurtherFlag = 0.25;

// The part of a step that each message after the first costs, where a rank sends to all ranks and
// receives from all ranks.
constexpr double kFurtherMessage = 0.5;

double RoundOf(double n) { return 1 + kFurtherFlag * (n - 2); }

// An AlltoAll through stages finds up to kCachedExchangeBytes of staged data in a cache. A byte
// beyond this limit costs as much as kUncachedByte further bytes (1 to 256 MB, two ranks).
constexpr double kCachedExchangeBytes = 4 << 20;
constexpr double kUncachedByte = 1.75;

Extent Staged(Collective collective, Algorithm algorithm, double n, double bytes) {
  const double round = RoundOf(n);
  switch (collective) {
    case Collective::kAllReduce:
      if (algorithm == kTwoShot) return {2 * round, 2, 3 * bytes * (n - 1) / n};
      return {round, 1, bytes * n};
    case Collective::kBroadcast:
      return {round, 1, bytes * 1.3};  // The bytes go in and out again, mostly at the same time.
    case Collective::kReduce:
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return {round, 1, bytes * n};
    case Collective::kBarrier:
      return {round, 1, 0};
    case Collective::kAlltoAll: {
      const double sent = bytes * (n - 1);
      const double uncached = std::max(0.0, sent - kCachedExchangeBytes);
      return {round, 1, 2 * sent + kUncachedByte * uncached};
    }
    default:  // ReduceScatter, AlltoAllV: `bytes` to each rank
      return {round, 1, 2 * bytes * (n - 1)};
  }
}

Extent Ring(Collective collective, double n, double bytes) {
  switch (collective) {
    case Collective::kAllReduce:
      return {2 * (n - 1), 2 * (n - 1), 2 * bytes * (n - 1) / n};
    case Collective::kBroadcast:
    case Collective::kReduce:
      // The data goes in pieces, and each later rank of the chain begins a little later.
      return {n - 1, n - 1, bytes * (1 + (n - 2) * 0.05)};
    default:  // A rank copies every part out of a FIFO and all but the last part into another.
      return {n - 1, n - 1, 1.3 * bytes * (n - 1)};
  }
}

// Returns how many bytes a rank moves when it adds n inputs, for each byte of the result: n bytes
// are read and one is written. The unit is the unit of the row's rate. The rate was fitted to
// AllReduces of two ranks, which read 1.5 bytes and write one for each byte that ExtentOf counts.
double AddingAll(double n) { return (n + 1) / 2.5; }

// The ranks describe their buffers to one another, read them where they lie, and meet at the end.
// The meeting ensures that no buffer is still being read.
Extent Pull(Collective collective, double n, double bytes) {
  const double round = RoundOf(n);
  switch (collective) {
    case Collective::kAllReduce:
      return {3 * round, 3, 2 * bytes * (n - 1) / n};
    case Collective::kReduce:
    case Collective::kReduceScatter:
      return {2 * round, 2, bytes * AddingAll(n)};
    case Collective::kBroadcast:
      // The root reads nothing. The other ranks move 32 GB/s where an AllReduce moves 13.
      return {2 * round, 2, 0.4 * bytes};
    default:
      return {2 * round, 2, bytes * (n - 1)};
  }
}

// Each exchange moves all data that a rank holds. The partner of an exchange is twice as far away
// as the partner before.
Extent Blocks(int num_ranks, double bytes) {
  const double exchanges = LogSteps(num_ranks);
  return {exchanges, exchanges, bytes};
}

}  // namespace

std::string_view Name(Wire wire) {
  constexpr std::string_view kNames[] = {"shared memory", "copies by the kernel", "TCP"};
  return kNames[static_cast<size_t>(wire)];
}

std::string_view Name(CostSource source) {
  constexpr std::string_view kNames[] = {"[bench/results/cost.md](../bench/results/cost.md)",
                                         "[bench/results/shm.md](../bench/results/shm.md)",
                                         "[bench/results/sockets.md](../bench/results/sockets.md)"};
  return kNames[static_cast<size_t>(source)];
}

std::span<const CostRow> CostTable() { return kTable; }

const CostRow* FindCost(Wire wire, Algorithm algorithm, Protocol protocol) {
  const auto* const row =
      std::find_if(std::begin(kTable), std::end(kTable), [&](const CostRow& one) {
        return one.wire == wire && one.algorithm == algorithm && one.protocol == protocol;
      });
  return row == std::end(kTable) ? nullptr : row;
}

Extent ExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes) {
  const double n = num_ranks;
  switch (algorithm) {
    case kRing:
      return Ring(collective, n, bytes);
    case kTree: {
      // The data goes up and down. An inner rank of a binary tree handles three links, and two
      // trees share the load.
      const double hops = 2 * LogSteps(num_ranks);
      return {hops, hops, (num_ranks == 2 ? 2 : 3) * bytes};
    }
    case kRecursiveDoubling: {
      if (collective == Collective::kAllGather || collective == Collective::kAllGatherV)
        return Blocks(num_ranks, 1.3 * bytes * (n - 1));
      const bool power_of_two = std::has_single_bit(static_cast<unsigned>(num_ranks));
      const double exchanges = LogSteps(num_ranks) + (power_of_two ? 0 : 1);
      return {exchanges, exchanges, exchanges * bytes};
    }
    case kRecursiveHalving:
      return Blocks(num_ranks, 1.3 * bytes * (n - 1));
    case kOneShot:
    case kTwoShot:
      return Staged(collective, algorithm, n, bytes);
    case kPull:
      return Pull(collective, n, bytes);
    case kExchange:
      // Bytes go into a FIFO and out of it again.
      return {n - 1, n - 1, 2 * bytes * (n - 1)};
    case kSymmetric:  // GPUs only: plan/mesh_rows.cc
    case kTwoLevel:   // TwoLevelExtentOf; GPUs: plan/channel_rows.cc
      break;
  }
  return {};
}

Extent MeshExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes) {
  const double n = num_ranks;
  const double messages = 1 + kFurtherMessage * (n - 2);
  // Bytes go into FIFOs and out of the FIFOs again.
  const bool all = collective == Collective::kAllReduce;
  if (algorithm == kTwoShot) return {2 * messages, 2, all ? 4 * bytes * (n - 1) / n : 2 * bytes};
  return {messages, 1, collective == Collective::kReduce ? bytes * (n - 1) : 2 * bytes * (n - 1)};
}

TwoLevelExtent TwoLevelExtentOf(Collective collective, int num_ranks, int num_hosts, int most_local,
                                int owners, double bytes) {
  const double others = most_local - 1, k = owners;
  const double round = most_local > 1 ? RoundOf(most_local) : 0;
  TwoLevelExtent extent;
  if (MovesWholeVector(collective)) {
    const bool power_of_two = std::has_single_bit(static_cast<unsigned>(num_hosts));
    const double exchanges = LogSteps(num_hosts) + (power_of_two ? 0 : 1);
    extent.between = {exchanges, exchanges, exchanges * bytes / k};
    // An owner takes its part from all other ranks of the host, and gives the result back to them.
    extent.inside = {2 * round, 2, 2 * others * bytes / k};
    return extent;
  }
  if (collective == Collective::kAlltoAll) {
    const double n = num_ranks;
    const bool all_own = owners == most_local;
    extent.between = {num_hosts - 1.0, num_hosts - 1.0,
                      2 * most_local * (n - most_local) * bytes / k};
    // A rank's row is loaded and its column stored. An owner takes rows and gives columns.
    extent.inside = {(all_own ? 1 : 2) * round, all_own ? 1.0 : 2.0,
                     (2 * n + 4 * others * (n - most_local) / k) * bytes};
    return extent;
  }
  const double exchanges = LogSteps(num_hosts);
  extent.between = {exchanges, exchanges, 1.3 * (num_ranks - most_local) * bytes / k};
  const bool all_own = owners == most_local;  // The data of an owner's own host is little.
  extent.inside = {(all_own ? 1 : 2) * round, all_own ? 1.0 : 2.0, others * num_ranks * bytes / k};
  return extent;
}

double CostUs(const CostRow& row, const Extent& extent, double channels_gbps, bool shared_cores) {
  double gbps = row.most_gbps * (shared_cores ? kSharedCorePart : 1);
  if (channels_gbps > 0) {
    const double shared = row.part * channels_gbps;
    gbps = gbps > 0 ? std::min(gbps, shared) : shared;
  }
  const double moving_us = gbps > 0 ? extent.bytes / (gbps * 1e3) : 0;
  const double wake_us = shared_cores ? WakeUs(row.wire) : 0;
  return row.start_us + extent.steps * row.step_us + extent.waits * wake_us + moving_us;
}

std::string CostTableMarkdown() {
  std::string text =
      "| wire | algorithm | protocol | start (µs) | step (µs) | at most (GB/s) | part of channels "
      "× bandwidth | where measured |\n|---|---|---|---|---|---|---|---|\n";
  for (const CostRow& row : kTable) {
    text += fmt::format("| {} | {} | {} | {:g} | {:g} | {} | {:.3g} | {} |\n", Name(row.wire),
                        Name(row.algorithm), Name(row.protocol), row.start_us, row.step_us,
                        row.most_gbps > 0 ? fmt::format("{:g}", row.most_gbps) : "–", row.part,
                        Name(row.source));
  }
  return text;
}

GpuCosts CostsOf(GpuReach reach) {
  if (reach == GpuReach::kNvlink) return {};
  return {
#define GPU_COST(type, field, nvlink, host_memory, unit, meaning) .field = host_memory,
#include "plan/gpu_costs.def"
  };
}

std::string GpuCostsMarkdown() {
  std::string text = "| name | NVLink | host memory | unit | what it is |\n|---|---|---|---|---|\n";
#define GPU_COST(type, field, nvlink, host_memory, unit, meaning)                                \
  text += fmt::format("| `{}` | {:g} | {:g} | {} | {} |\n", #field, static_cast<double>(nvlink), \
                      static_cast<double>(host_memory), unit, meaning);
#include "plan/gpu_costs.def"
  return text;
}

}  // namespace tutti
