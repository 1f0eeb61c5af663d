#pragma once

// The cost model: what an operation takes, from what its algorithm does and what its wires cost.
//
//   time = start + steps × step + waits × wake + bytes / min(most, part × channels × bandwidth)
//
// Steps and bytes follow from the algorithm (ExtentOf); start, step, most and part stand in one
// table (CostTable), a row for each wire, algorithm and protocol, with where each was measured;
// channels × bandwidth are what the search found on the machine (topology/search.h). Pure
// functions: all ranks compute the same. docs/cost_model.md is made from the table.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "plan/work.h"
#include "topology/paths.h"

namespace tutti {

// What joins two ranks, as far as costs go.
enum class Wire : uint8_t {
  kSharedMemory,  // host ranks of one machine
  kKernelCopy,    // … of several processes, by process_vm_readv
  kTcp,           // host ranks of two
  kNvlink,        // GPUs: NVLink, xGMI, C2C
  kPci,           // GPUs: PCI, over processors or not
  kNic,           // GPUs of two machines
};
std::string_view Name(Wire wire);
inline bool IsGpu(Wire wire) { return wire >= Wire::kNvlink; }

// The wire of GPUs of one host whose channels use paths of `kind` at worst.
Wire WireOf(topology::PathKind kind);

// Where a row's numbers come from.
enum class CostSource : uint8_t {
  kCostBench,  // bench/results/cost.md
  kShmBench,   // bench/results/shm.md
  kH200,       // fitted to NCCL 2.28.9 on 8 H200, bench/results/nccl-h200x8.md
  kNccl,       // constants of NCCL's src/graph/tuning.cc; not measured here
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
// What a GPU's launch costs more outside a CUDA graph: 8 H200, NCCL's AllReduce of 64 B to 4 KB.
inline constexpr double kLaunchUs = 3.4;

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

// The table as Markdown.
std::string CostTableMarkdown();

}  // namespace tutti
