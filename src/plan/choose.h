#pragma once

// Chooses which algorithm and protocol an operation uses, and in which pieces: the cheapest by the
// cost model (cost_table.h), among those that work for the communicator and that NCCL_ALGO and
// NCCL_PROTO allow. A pure function: every rank computes the same answer from the same inputs,
// which is what makes the ranks fit together. A tuner (cost_adviser.h) must be such a function too.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/datatype.h"
#include "base/status.h"
#include "plan/cost_adviser.h"
#include "plan/crossings.h"
#include "plan/reduction_order.h"
#include "plan/work.h"

namespace tutti {

// Holds what the choice depends on, which is the same on all ranks of a communicator.
struct PlanContext {
  int num_ranks = 1;
  bool one_host = true;         // All ranks share an arena.
  bool can_pull = false;        // All ranks can read one another's memory through the kernel.
  bool oversubscribed = false;  // Some host has more ranks than processors.
  bool deterministic = false;   // reductions keep the order of the ranks, see reduction_order.h
  size_t stage_bytes = 0;
  size_t slot_bytes = 0;  // Every FIFO has slots of this length.
  // The search found these: channels × bandwidth inside the hosts, and between them; of the host
  // that has least. 0: not known, and then only what a rank itself moves is a bound (cost_table.h).
  double host_gbps = 0;
  double network_gbps = 0;
  // Between hosts: how the ranks are divided among them, and what each passage from one to the next
  // costs besides, in microseconds (crossings.h).
  HostLayout hosts = {};
  double network_us = 0;
  // So many ranks of a host send through one NIC: where all send at once, each has only its part
  // of it. A ring or a tree enters and leaves a host once.
  int ranks_per_nic = 1;
  // For each Collective, a bit for each Algorithm or Protocol that is allowed, or 0 for all.
  std::array<uint32_t, kNumCollectives> allowed_algorithms = {};
  std::array<uint32_t, kNumCollectives> allowed_protocols = {};
};

struct Choice {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  size_t chunk_elems = 1;  // per step of the algorithm
  size_t slice_elems = 1;  // per slot
  double time_us = 0;      // The model predicts this.
  int owners = 1;          // By two levels: so many ranks of each host send to other hosts.
};

// Whether the ranks of one host can read the buffers of an operation where they lie, as far as all
// of them know.
enum class Reading : uint8_t {
  kNone,           // They cannot, or should not.
  kMapped,         // All buffers are mapped by all ranks.
  kPerhapsMapped,  // They may be; ranks that describe their buffers to one another find out.
  kCopied,         // Through the kernel, by process_vm_readv.
};

// Returns the cheapest algorithm; kPull is among them as `reading` says. An algorithm that does not
// keep `order` is not chosen, whatever the lists allow, or `adviser` (may be null) says. An adviser
// that leaves nothing of what is allowed is not heeded. `count` as in WorkShape.
// REQUIRES: num_ranks > 1, count > 0 (Barrier: count is ignored).
Choice Choose(const PlanContext& context, Collective collective, size_t count, size_t elem_bytes,
              ReductionOrder order = ReductionOrder::kAny, Reading reading = Reading::kNone,
              CostAdviser* adviser = nullptr);

// Returns whether NCCL_PROTO leaves the protocol to a collective.
bool IsLeft(const PlanContext& context, Collective collective, Protocol protocol);

// Returns what the model predicts for one algorithm, in microseconds; infinite when it does not
// apply. `bytes` is the whole vector for AllReduce, Reduce and Broadcast, one rank's part
// otherwise.
double PredictUs(const PlanContext& context, Collective collective, Algorithm algorithm,
                 double bytes);

// Reads NCCL_ALGO and NCCL_PROTO into the context: "ring,tree", "^tree",
// "allreduce:tree;broadcast:ring". Names of what hosts do not have (collnet, nvls, pat, symmetric;
// LL128) are ignored. InvalidUsage for unknown names.
Status ApplyAlgorithmList(std::string_view algo, PlanContext& context);
Status ApplyProtocolList(std::string_view proto, PlanContext& context);
// Reads "ring,tree" or "^tree" for one call. Returns a bit for each Algorithm, of whatever ranks,
// that it leaves. InvalidUsage for unknown names.
Result<uint32_t> ReadAlgorithmNames(std::string_view names);
// Returns whether such a setting says something, but names nothing that is there.
bool LeavesNothing(std::string_view text, const std::array<uint32_t, kNumCollectives>& allowed);

}  // namespace tutti
