#pragma once

// Plans how a collective runs: by the row of the table of algorithms (plan/algorithms.def), the
// protocol, the number of channels and the lengths of pieces.
//
// MakePlan plans for ranks of every kind with the same loop. Each row of the table names a function
// that cuts the data and a function that predicts the time. MakePlan takes the row and protocol
// with the shortest time, and leaves out rows that change the order of the ranks where a reduction
// must keep the order. NCCL_ALGO, NCCL_PROTO, the wishes of a single call and a tuner plugin take
// effect in this loop and nowhere else.
//
// MakePlan is a pure function: all ranks of a communicator compute the same plan from the same
// context and question, and therefore their operations fit together. A tuner (plan/cost_adviser.h)
// has to be a pure function too. A Planner remembers the plans of one communicator.

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
#include "plan/task.h"
#include "plan/work.h"

namespace tutti {

// Holds the facts about ranks on hosts by which operations are planned. PlanContext has the facts
// about ranks of every kind.
struct HostReach {
  bool one_host = true;         // All ranks share an arena.
  bool can_pull = false;        // All ranks can read all ranks' memory through the kernel.
  bool oversubscribed = false;  // Some host has more ranks than processors.
  size_t stage_bytes = 0;
  size_t slot_bytes = 0;  // Slots of every FIFO have this length.
  // The number of channels times their bandwidth, inside the hosts and between hosts, of the host
  // with the smallest product. The search computes these numbers (topology/search.h). 0 means "not
  // known"; then only the rate of a single rank is a bound (plan/cost_table.h).
  double host_gbps = 0;
  double network_gbps = 0;
  // The time that a passage from one host to the next adds, in microseconds (plan/crossings.h).
  double network_us = 0;
  // The number of ranks of a host that send through one NIC. Where all of them send at once, each
  // gets its share of the NIC. A ring or a tree enters and leaves a host only once.
  int ranks_per_nic = 1;
};

// Holds the facts about GPUs with access to one another's memory by which operations are planned.
struct MeshReach {
  // The bytes of data that fit one slot. Simple, LL and LL128 have slots for each pair of ranks
  // and each block, which hold a round's data. A ring has slots for each block, which hold a step's
  // data. LL128 is not used where ll128_slot_bytes is 0.
  size_t slot_bytes = 0;
  size_t ring_slot_bytes = 0;
  size_t ll_slot_bytes = 0;
  size_t ll128_slot_bytes = 0;
  uint32_t max_blocks = 1;         // The most blocks of a kernel.
  uint32_t min_blocks = 1;         // The fewest blocks, as far as max_blocks and the data allow.
  uint32_t max_lone_blocks = ~0u;  // The most blocks that need a multiprocessor each.
  size_t short_message_bytes = kLLMessage;  // Messages of at most this many bytes go by LL.
  GpuCosts costs;
  // The rate of a GPU's links, in bytes a microsecond, where the rate is known and less than the
  // rates of `costs`. 0 means "not known".
  double link_bytes_per_us = 0;
};

// Holds the facts about GPUs that channels join by which operations are planned.
struct ChannelReach {
  uint32_t channels = 1;  // The most channels of a plan.
  size_t slot_bytes = 0;
  size_t pair_slot_bytes = 0;  // Slots of the FIFOs between all pairs of ranks. 0: no such FIFOs.
  // The rate of all NICs of a host together. 0 means "not known".
  double network_bytes_per_us = 0;
  // The number of ranks of each host, where all hosts have equally many ranks and the ranks of a
  // host reach one another's windows. Otherwise 0.
  int local_ranks = 0;
  uint32_t trees = 0;  // The most trees of an AllReduce. A tree takes two channels.
  size_t tree_slot_bytes = 0;
};

// Holds all facts by which operations are planned. All ranks of a communicator have equal contexts.
struct PlanContext {
  RankKind kind = RankKind::kHost;
  int num_ranks = 1;
  bool deterministic = false;  // Reductions keep the order of the ranks (plan/reduction_order.h).
  HostLayout hosts = {};
  // For each Collective, a bit for each Algorithm that NCCL_ALGO allows and a bit for each Protocol
  // that NCCL_PROTO allows. 0 allows all. A list without any algorithm or protocol for a collective
  // has no effect on the collective.
  std::array<uint32_t, kNumCollectives> allowed_algorithms = {};
  std::array<uint32_t, kNumCollectives> allowed_protocols = {};
  HostReach host = {};        // For RankKind::kHost.
  MeshReach mesh = {};        // For RankKind::kMesh.
  ChannelReach channel = {};  // For RankKind::kChannels.
};

// Says how the ranks of an operation reach one another's buffers, as far as all ranks know.
enum class Buffers : uint8_t {
  kOwn,            // A rank reaches its own buffers only.
  kPerhapsMapped,  // Hosts: the ranks describe their buffers to one another to find out.
  kMapped,         // Hosts: all ranks have mapped all buffers.
  kCopied,         // Hosts: all ranks read all buffers through the kernel, by process_vm_readv.
  kRegistered,     // GPUs: all ranks reach all buffers that the operation touches remotely.
  kScattered,      // Hosts: each rank has many buffers, taken by a stage one by one.
};

// Describes the operation to plan.
struct Question {
  Collective collective = Collective::kAllReduce;
  // The count as in NCCL's calls: all elements for AllReduce, Reduce and Broadcast, otherwise a
  // single rank's part. A barrier has no count.
  size_t count = 0;
  // GPUs count the data of collectives that do not reduce in bytes.
  DataType type = DataType::kUint8;
  ReductionOrder order = ReductionOrder::kAny;
  Buffers buffers = Buffers::kOwn;
  // The wishes of a call: a bit for each Algorithm that the call allows, or 0 for all that the
  // context allows; and the most blocks or channels, or 0 for the limit of the context.
  uint32_t algorithms = 0;
  uint32_t most_channels = 0;

  size_t elem_bytes() const { return SizeOf(type); }
  double bytes() const { return static_cast<double>(count) * static_cast<double>(elem_bytes()); }

  friend bool operator==(const Question&, const Question&) = default;
};

inline constexpr double kNeverUs = std::numeric_limits<double>::infinity();

// Describes how a collective runs.
struct Plan {
  const AlgorithmRow* row = nullptr;  // Null where no row serves; then `us` is infinite.
  Protocol protocol = Protocol::kSimple;
  // The number of channels, of trees, or of a kernel's blocks, and the number of elements of each;
  // the last may have fewer. Ranks on hosts have one channel.
  uint32_t channels = 1;
  size_t channel_elems = 0;
  size_t chunk_elems = 1;  // The elements of one step of the algorithm.
  size_t slice_elems = 1;  // The elements of one slot.
  size_t slot_elems = 0;   // The most elements of a slot. 0: a tuner may not change slice_elems.
  uint32_t threads = 128;  // The threads of a block, for GPUs with access to one another's memory.
  bool early = false;      // The kernel may begin early: see GpuCosts::early_blocks.
  int owners = 1;          // Two levels on hosts: the ranks of each host that send to other hosts.
  double us = kNeverUs;    // The predicted time. For a mesh, without GpuCosts::launch_us.

  // REQUIRES: row is not null.
  Algorithm algorithm() const { return row->algorithm; }
};

// Returns the plan with the shortest predicted time. `adviser` may be null. The advice is ignored
// where the adviser rules out all allowed plans. REQUIRES: num_ranks > 1; count > 0, except for a
// barrier.
Plan MakePlan(const PlanContext& context, const Question& question, CostAdviser* adviser = nullptr);

// Returns the predicted time of one algorithm, in microseconds, or infinity where the algorithm
// does not serve the question.
double PredictUs(const PlanContext& context, const Question& question, Algorithm algorithm);

// Returns how long the operation takes by itself, in microseconds; on GPUs, how long in a CUDA
// graph.
double PredictUs(const PlanContext& context, const Question& question,
                 CostAdviser* adviser = nullptr);

// Returns a hash of the parts of a plan that ranks with different tuners might choose differently.
uint64_t HashOf(const Plan& plan);

// Returns whether NCCL_PROTO allows the protocol for a collective.
bool IsLeft(const PlanContext& context, Collective collective, Protocol protocol);

// Reads NCCL_ALGO or NCCL_PROTO into the context: "ring,tree", "^tree",
// "allreduce:tree;broadcast:ring". A name that only other kinds of ranks have is ignored. Returns
// InvalidUsage for an unknown name. REQUIRES: the context's kind is set.
Status ApplyAlgorithmList(std::string_view algo, PlanContext& context);
Status ApplyProtocolList(std::string_view proto, PlanContext& context);
// Reads "ring,tree" or "^tree" for a single call. Returns a bit for each Algorithm that the text
// allows, for ranks of all kinds, or InvalidUsage for an unknown name.
Result<uint32_t> ReadAlgorithmNames(std::string_view names);
// Returns whether a setting has a text, but the text names nothing that the ranks have.
bool LeavesNothing(std::string_view text, const std::array<uint32_t, kNumCollectives>& allowed);

// Returns the question that a task asks. GPUs count the data of collectives that do not reduce in
// bytes.
Question QuestionOf(const PlanContext& context, const CollectiveTask& task,
                    Buffers buffers = Buffers::kOwn);

// Returns how long a task takes by itself, in microseconds; on GPUs, how long in a CUDA graph. The
// time of a one-sided call is not known, and 0 is returned.
double PredictUs(const PlanContext& context, const Task& task, Buffers buffers = Buffers::kOwn,
                 CostAdviser* adviser = nullptr);

// Returns whether the call or the whole communicator demands additions in the order of the ranks.
inline bool IsDeterministic(const PlanContext& context, const CollectiveTask& task) {
  return context.deterministic || task.wishes.deterministic;
}

// Makes the plans of one communicator's operations. Programs repeat their calls, and therefore the
// planner remembers recent plans. With a tuner, the planner makes each plan anew, because the tuner
// may change its advice.
//
// One thread at a time may call For. Any thread may call the other functions.
class Planner {
 public:
  // `adviser` may be null and must outlive the planner.
  explicit Planner(PlanContext context = {}, CostAdviser* adviser = nullptr)
      : context_(std::move(context)), adviser_(adviser) {}

  const PlanContext& context() const { return context_; }
  CostAdviser* adviser() const { return adviser_; }

  // Returns the plan for a task with buffers of the kind `buffers`. The reference is valid until
  // the next call. The requirements are those of MakePlan.
  const Plan& For(const CollectiveTask& task, Buffers buffers = Buffers::kOwn);
  // Returns an equal plan, and remembers nothing.
  Plan Make(const CollectiveTask& task, Buffers buffers = Buffers::kOwn) const {
    return MakePlan(context_, QuestionOf(context_, task, buffers), adviser_);
  }
  double PredictUs(const Task& task, Buffers buffers = Buffers::kOwn) const {
    return tutti::PredictUs(context_, task, buffers, adviser_);
  }

  // Returns InvalidUsage if the call demands certain algorithms and none of them serves the call.
  // The planner does not ask the tuner here, because the tuner's advice may differ between ranks.
  Status CheckWishes(const CollectiveTask& task, Buffers buffers = Buffers::kOwn) const;

 private:
  struct Remembered {
    Question question;  // An entry is empty while its plan has no row.
    Plan plan;
  };
  static constexpr size_t kRemembered = 64;

  PlanContext context_;
  CostAdviser* adviser_;
  std::array<Remembered, kRemembered> remembered_ = {};
};

}  // namespace tutti
