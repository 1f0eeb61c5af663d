#pragma once

// Which algorithm and protocol an operation uses, and in which pieces: the cheapest by the cost
// model (cost_table.h), among those that work for the communicator and that NCCL_ALGO and
// NCCL_PROTO allow. A pure function: every rank computes the same answer from the same inputs,
// which is what makes the ranks fit together.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/datatype.h"
#include "base/status.h"
#include "plan/reduction_order.h"
#include "plan/work.h"

namespace tutti {

// What the choice depends on. The same on all ranks of a communicator.
struct PlanContext {
  int num_ranks = 1;
  bool one_host = true;         // all ranks share an arena
  bool can_pull = false;        // all ranks can read one another's memory through the kernel
  bool oversubscribed = false;  // more ranks than processors on some host
  bool deterministic = false;   // reductions keep the order of the ranks, see reduction_order.h
  size_t stage_bytes = 0;
  size_t slot_bytes = 0;  // of every ring of slots
  // What the search found: channels × bandwidth inside the hosts, and between them; of the host
  // that has least. 0: not known, and then only what a rank itself moves is a bound (cost_table.h).
  double host_gbps = 0;
  double network_gbps = 0;
  // Ranks of a host that send through one port of the network: where all send at once each has its
  // part of it only. A ring or a tree enters and leaves a host once.
  int ranks_per_port = 1;
  // By Collective: bit per Algorithm, per Protocol; 0: all.
  std::array<uint32_t, kNumCollectives> allowed_algorithms = {};
  std::array<uint32_t, kNumCollectives> allowed_protocols = {};
};

struct Choice {
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  size_t chunk_elems = 1;  // per step of the algorithm
  size_t slice_elems = 1;  // per slot
  double time_us = 0;      // what the model predicts
};

// `count` as in WorkShape. An algorithm that does not keep `order` is not chosen, whatever the
// lists allow. REQUIRES: num_ranks > 1, count > 0 (Barrier: count is ignored).
Choice Choose(const PlanContext& context, Collective collective, size_t count, size_t elem_bytes,
              ReductionOrder order = ReductionOrder::kAny);

// Whether ranks of one machine should find out if they can read one another's buffers
// (`mapped_only` false: also by copies of the kernel) rather than stage. `bytes` as for PredictUs.
bool ShouldPull(const PlanContext& context, Collective collective, double bytes, bool mapped_only);

// What the model predicts for one algorithm, in microseconds; infinite when it does not apply.
// `bytes` is the whole vector for AllReduce, Reduce and Broadcast, one rank's part otherwise.
double PredictUs(const PlanContext& context, Collective collective, Algorithm algorithm,
                 double bytes);

// The same for an operation whose ranks read one another's buffers (ShouldPull), by copies of the
// kernel unless `mapped`.
double PredictPullUs(const PlanContext& context, Collective collective, double bytes, bool mapped);

// Reads NCCL_ALGO and NCCL_PROTO into the context: "ring,tree", "^tree",
// "allreduce:tree;broadcast:ring". Names of what hosts do not have (collnet, nvls, pat, symmetric;
// LL128) are ignored. InvalidUsage for unknown names.
Status ApplyAlgorithmList(std::string_view algo, PlanContext& context);
Status ApplyProtocolList(std::string_view proto, PlanContext& context);
// Whether such a setting says something, but names nothing that is there.
bool LeavesNothing(std::string_view text, const std::array<uint32_t, kNumCollectives>& allowed);

}  // namespace tutti
