#pragma once

// The cost model: every number by which an algorithm is chosen.
//
// On hosts an operation takes what follows from what its algorithm does and what its wires cost:
//
//   time = start + steps × step + waits × wake + bytes / min(most, part × channels × bandwidth)
//
// Steps and bytes follow from the algorithm (ExtentOf); start, step, most and part stand in one
// table (CostTable), a row for each wire, algorithm and protocol, with where each was measured;
// channels × bandwidth are what the search found on the machine (topology/search.h).
//
// GPUs have numbers of their own (GpuCosts), which plan/mesh.h adds up.
//
// Pure functions: all ranks compute the same. docs/cost_model.md is made from the tables.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plan/work.h"

namespace tutti {

// What joins two host ranks, as far as costs go.
enum class Wire : uint8_t {
  kSharedMemory,  // Ranks of one host.
  kKernelCopy,    // Ranks of one host in several processes, by process_vm_readv.
  kTcp,           // Ranks of two hosts.
};
std::string_view Name(Wire wire);

// Where a row's numbers come from.
enum class CostSource : uint8_t {
  kCostBench,     // bench/results/cost.md
  kShmBench,      // bench/results/shm.md
  kSocketsBench,  // bench/results/sockets.md
};
std::string_view Name(CostSource source);

struct CostRow {
  Wire wire = Wire::kSharedMemory;
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  double start_us = 0;   // once
  double step_us = 0;    // each step
  double most_gbps = 0;  // GB/s that a rank moves at most; 0: no bound but the channels'
  double part = 1;       // of the channels' bandwidth that the protocol makes use of
  CostSource source = CostSource::kCostBench;
};

std::span<const CostRow> CostTable();

// Null when that cannot be.
const CostRow* FindCost(Wire wire, Algorithm algorithm, Protocol protocol);

// Host ranks that share cores do not spin: each time one waits, its peer must be scheduled first;
// and they share what a core moves. Measured with 4 ranks on 2 cores, bench/results/cost.md.
constexpr double WakeUs(Wire wire) { return wire == Wire::kTcp ? 17 : 4; }
inline constexpr double kSharedCorePart = 0.5;

// From how many bytes on the ranks of several processes describe their buffers to one another to
// find out whether these are mapped. Where they are not, they have met for nothing, which costs 0.5
// us: a tenth of what an operation of this size takes (bench/results/cost.md).
inline constexpr double kAskFromBytes = 16 << 10;

// What an algorithm does, from one end to the other.
struct Extent {
  double steps = 0;  // one after the other
  double waits = 0;  // for other ranks, one after the other
  double bytes = 0;  // that a rank moves
};

// `bytes` is the whole vector for AllReduce, Reduce and Broadcast, one rank's part otherwise.
// REQUIRES: num_ranks > 1.
Extent ExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes);
// The same for one-shot and two-shot reductions over FIFOs between all pairs of ranks.
Extent MeshExtentOf(Collective collective, Algorithm algorithm, int num_ranks, double bytes);

// The time of `row` where the channels have `channels_gbps` in all (0: not known, no bound).
// `shared_cores`: host ranks share cores.
double CostUs(const CostRow& row, const Extent& extent, double channels_gbps, bool shared_cores);

// The numbers by which operations of GPUs are planned (plan/gpu_costs.def); plan/mesh.h adds them
// up.
struct GpuCosts {
#define GPU_COST(type, field, nvlink, host_memory, unit, meaning) type field = nvlink;
#include "plan/gpu_costs.def"
};

// How GPUs reach one another's windows.
enum class GpuReach : uint8_t {
  kNvlink,      // In one another's memory. Measured where NVLink joins them.
  kHostMemory,  // In pinned memory of the host.
};
GpuCosts CostsOf(GpuReach reach);

// What an operation takes more than on hosts where GPUs have their hosts move the data: the way to
// a thread of the host and back (bench/results/gpu_paths.md).
inline constexpr double kRelayUs = 40;

// The tables as Markdown.
std::string CostTableMarkdown();
std::string GpuCostsMarkdown();

}  // namespace tutti
