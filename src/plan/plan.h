#pragma once

// Plans how a collective runs: which row of the table of algorithms (plan/algorithms.def), by which
// protocol, over how many channels, in which pieces.
//
// One loop plans for ranks of every kind. Each row of the table names a function that cuts the data
// and a function that predicts the time, and MakePlan takes the row and protocol with the shortest
// time among those that keep the order of the ranks where that is asked for. NCCL_ALGO, NCCL_PROTO,
// what one call wishes and a tuner plugin count in this loop and nowhere else.
//
// MakePlan is a pure function: all ranks of a communicator compute the same plan from the same
// context and question, which is why their operations fit together. A tuner (plan/cost_adviser.h)
// has to be such a function too.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "base/datatype.h"
#include "base/status.h"
#include "plan/algorithm_table.h"
#include "plan/cost_adviser.h"
#include "plan/cost_table.h"
#include "plan/crossings.h"
#include "plan/mesh_limits.h"
#include "plan/reduction_order.h"
#include "plan/work.h"

namespace tutti {

// Holds what plans of ranks on hosts depend on besides what all plans depend on.
struct HostReach {
  bool one_host = true;         // All ranks share an arena.
  bool can_pull = false;        // All ranks can read one another's memory through the kernel.
  bool oversubscribed = false;  // Some host has more ranks than processors.
  size_t stage_bytes = 0;
  size_t slot_bytes = 0;  // Every FIFO has slots of this length.
  // Channels × bandwidth inside the hosts and between hosts, of the host that has least, as the
  // search found them. 0: not known; then only what a rank itself moves is a bound (cost_table.h).
  double host_gbps = 0;
  double network_gbps = 0;
  // What a passage from one host to the next costs besides, in microseconds (crossings.h).
  double network_us = 0;
  // So many ranks of a host send through one NIC. Where all of them send at once, each has its part
  // of the NIC only. A ring or a tree enters and leaves a host once.
  int ranks_per_nic = 1;
};

// Holds what plans of GPUs depend on that reach one another's memory.
struct MeshReach {
  // The data that one slot takes: of a round by Simple, for each pair and block; of a step of a
  // ring, for each block; of a round by LL and by LL128, for each pair and block. Where a slot by
  // LL128 takes none, LL128 is not used.
  size_t slot_bytes = 0;
  size_t ring_slot_bytes = 0;
  size_t ll_slot_bytes = 0;
  size_t ll128_slot_bytes = 0;
  uint32_t max_blocks = 1;                  // The most blocks of a kernel.
  uint32_t min_blocks = 1;                  // The fewest, as far as max_blocks and the data allow.
  uint32_t max_lone_blocks = ~0u;           // The most blocks that need a multiprocessor each.
  size_t short_message_bytes = kLLMessage;  // Messages of at most this many bytes go by LL.
  GpuCosts costs;
  // The links of a GPU carry so much, in bytes a microsecond, where this is known and less than the
  // costs say. 0: not known.
  double link_bytes_per_us = 0;
};

// Holds what plans of GPUs depend on that channels join.
struct ChannelReach {
  uint32_t channels = 1;  // A plan uses at most so many.
  size_t slot_bytes = 0;
  size_t pair_slot_bytes = 0;  // Slots of the FIFOs between all pairs of ranks; 0: no such FIFOs.
  // All NICs of a host together send so much. 0: not known.
  double network_bytes_per_us = 0;
  // The ranks of each host, where all hosts have equally many ranks that reach one another's
  // windows. Otherwise 0.
  int local_ranks = 0;
  uint32_t trees = 0;  // AllReduces may go by so many trees, which take two channels each.
  size_t tree_slot_bytes = 0;
};

// Holds what plans depend on. The context is the same on all ranks of a communicator.
struct PlanContext {
  RankKind kind = RankKind::kHost;
  int num_ranks = 1;
  bool deterministic = false;  // Reductions keep the order of the ranks: plan/reduction_order.h.
  HostLayout hosts = {};
  // For each Collective, a bit for each Algorithm that NCCL_ALGO leaves and for each Protocol that
  // NCCL_PROTO leaves, or 0 for all. A list that leaves nothing which serves has no effect.
  std::array<uint32_t, kNumCollectives> allowed_algorithms = {};
  std::array<uint32_t, kNumCollectives> allowed_protocols = {};
  HostReach host = {};        // Of RankKind::kHost.
  MeshReach mesh = {};        // Of RankKind::kMesh.
  ChannelReach channel = {};  // Of RankKind::kChannels.
};

// Says what all ranks know of the buffers of an operation.
enum class Buffers : uint8_t {
  kOwn,            // A rank reaches its own buffers only.
  kPerhapsMapped,  // Hosts: ranks find out by describing their buffers to one another.
  kMapped,         // Hosts: all ranks have mapped all buffers.
  kCopied,         // Hosts: all ranks read all buffers through the kernel, by process_vm_readv.
  kRegistered,     // GPUs: all ranks reach what an operation reads or writes at other ranks.
  kScattered,      // Hosts: each rank has many buffers, which a stage takes one by one.
};

// Says what a plan is made for.
struct Question {
  Collective collective = Collective::kAllReduce;
  // As NCCL counts: the whole for AllReduce, Reduce and Broadcast, one rank's part otherwise.
  // Ignored for a barrier.
  size_t count = 0;
  // Collectives of GPUs that only move data count in bytes.
  DataType type = DataType::kUint8;
  ReductionOrder order = ReductionOrder::kAny;
  Buffers buffers = Buffers::kOwn;
  // What one call wishes: a bit for each Algorithm that it leaves, 0 for what the context leaves;
  // and the most blocks or channels, 0 for what the context has.
  uint32_t algorithms = 0;
  uint32_t most_channels = 0;

  size_t elem_bytes() const { return SizeOf(type); }
  double bytes() const { return static_cast<double>(count) * static_cast<double>(elem_bytes()); }

  friend bool operator==(const Question&, const Question&) = default;
};

inline constexpr double kNeverUs = std::numeric_limits<double>::infinity();

// Says how a collective runs.
struct Plan {
  const AlgorithmRow* row = nullptr;  // Null where no row serves; then `us` is infinite.
  Protocol protocol = Protocol::kSimple;
  // The channels, trees or blocks of a kernel, and the elements of each but the last. Ranks of
  // hosts have one channel.
  uint32_t channels = 1;
  size_t channel_elems = 0;
  size_t chunk_elems = 1;  // One step of the algorithm moves so many elements.
  size_t slice_elems = 1;  // A slot takes so many elements.
  size_t slot_elems = 0;   // A slot could take so many. 0: a tuner may not change the slices.
  uint32_t threads = 128;  // Of a block, for GPUs that reach one another's memory.
  bool early = false;      // See GpuCosts::early_blocks.
  int owners = 1;          // Hosts, by two levels: so many ranks of each send to other hosts.
  double us = kNeverUs;    // The predicted time. Of a mesh, beyond what all operations take.

  // REQUIRES: row is not null.
  Algorithm algorithm() const { return row->algorithm; }
};

// Returns the plan with the shortest predicted time. `adviser` may be null. An adviser that leaves
// nothing of what is allowed is not heeded. REQUIRES: num_ranks > 1; count > 0, except for a
// barrier.
Plan MakePlan(const PlanContext& context, const Question& question, CostAdviser* adviser = nullptr);

// Returns the predicted time of one algorithm, in microseconds; infinite where it does not serve.
double PredictUs(const PlanContext& context, const Question& question, Algorithm algorithm);

// Returns how long a task takes by itself, in microseconds, in a CUDA graph where ranks are GPUs.
double PredictUs(const PlanContext& context, const Question& question,
                 CostAdviser* adviser = nullptr);

// Returns whether NCCL_PROTO leaves the protocol to a collective.
bool IsLeft(const PlanContext& context, Collective collective, Protocol protocol);

// Reads NCCL_ALGO and NCCL_PROTO into the context: "ring,tree", "^tree",
// "allreduce:tree;broadcast:ring". Names of what the context's ranks do not have are ignored.
// InvalidUsage for unknown names. REQUIRES: the context's kind is set.
Status ApplyAlgorithmList(std::string_view algo, PlanContext& context);
Status ApplyProtocolList(std::string_view proto, PlanContext& context);
// Reads "ring,tree" or "^tree" for one call. Returns a bit for each Algorithm that the text leaves,
// of ranks of any kind. InvalidUsage for unknown names.
Result<uint32_t> ReadAlgorithmNames(std::string_view names);
// Returns whether such a setting says something, but names nothing that the ranks have.
bool LeavesNothing(std::string_view text, const std::array<uint32_t, kNumCollectives>& allowed);

}  // namespace tutti
