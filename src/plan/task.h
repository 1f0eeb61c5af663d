#pragma once

// A Task is one call of the API, checked, as the communicator executes it: a collective, a message,
// or a one-sided call.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <variant>
#include <vector>

#include "base/datatype.h"
#include "base/status.h"
#include "plan/scattered_buffers.h"
#include "plan/work.h"

namespace tutti {

// The reduction a caller asked for.
struct ReduceOp {
  ReduceKind kind = ReduceKind::kSum;
  bool average = false;
  bool pre_multiply = false;
  uint64_t scalar = 0;  // With pre_multiply, it holds one element.
  // Where it is not null, the element is read from here when the operation runs.
  const void* live_scalar = nullptr;
  uint8_t number = 0;  // The signature has it.
};

// Counts and displacements of the variable-size forms, in elements, one per rank.
struct VariableParts {
  std::vector<size_t> send_counts, send_offsets;  // AlltoAllV only
  std::vector<size_t> recv_counts, recv_offsets;
};

// A one-sided call. An object of window/one_sided.h makes it, and it takes its turn among the
// operations of a communicator.
class OneSidedCall {
 public:
  virtual ~OneSidedCall() = default;
  // Returns whether it waits for other ranks. In a group, calls that wait come after all others,
  // which another rank may be waiting for.
  virtual bool waits() const = 0;
  // Returns why it cannot be queued on a device stream; asked before anything of a group is queued.
  virtual Status Check(void* /*stream*/) const { return Status::Ok(); }
  // Makes the call, or queues it on a device stream.
  virtual Status Run(void* stream) const = 0;
};

// What one call asks for beyond what its communicator does, the same on all ranks.
struct CallWishes {
  bool deterministic = false;
  bool demands_algorithms = false;  // Without any of `algorithms` the call must fail.
  uint32_t algorithms = 0;          // A bit for each Algorithm that may be taken; 0: any.
  int64_t timeout_ns = 0;           // The call may make no progress for so long; 0: as ever.
  uint32_t most_blocks = 0;  // A kernel has so many blocks at most, as far as it can; 0: any.

  friend bool operator==(const CallWishes&, const CallWishes&) = default;
};

// What a call carries for its own rank alone. Other ranks may have given theirs something else.
struct CallExtras {
  uint64_t profiler_tag = 0;  // Profiler plugins are told it; 0: none.
  // GPUs: a CUDA event of the caller's that happens once all blocks of the call's kernel have
  // begun. Null: none.
  void* launch_event = nullptr;
  // Hosts: called when the operation begins. It may be called several times, or never.
  std::function<void()> on_begin = {};
};

// A collective.
struct CollectiveTask {
  Collective collective = Collective::kAllReduce;  // Not kSendRecv.
  const void* send = nullptr;
  void* recv = nullptr;
  // The count as NCCL has it: of each rank for AllGather, ReduceScatter, AlltoAll, Gather, Scatter;
  // of all ranks together for AllGatherV and ReduceScatterV. AlltoAllV has none.
  size_t count = 0;
  DataType type = DataType::kInt8;
  ReduceOp op = {};
  int root = 0;
  CallWishes wishes = {};
  std::shared_ptr<const CallExtras> extras = {};    // Null for a call that carries none.
  std::shared_ptr<const VariableParts> parts = {};  // Of the variable-size forms.
  // AllReduce of many buffers, instead of `send` and `recv`; `count` is that of all together.
  std::shared_ptr<const ScatteredBuffers> scattered = {};

  size_t elem_bytes() const { return SizeOf(type); }
  // Returns the size of `count` elements, or of all that AlltoAllV sends, which has no count.
  size_t bytes() const {
    return elem_bytes() *
           (collective != Collective::kAlltoAllV
                ? count
                : std::accumulate(parts->send_counts.begin(), parts->send_counts.end(), size_t{0}));
  }
  // Returns the count by which plans are made: of the longest part, where parts differ.
  size_t plan_count() const {
    return parts && collective != Collective::kAlltoAllV
               ? *std::max_element(parts->recv_counts.begin(), parts->recv_counts.end())
               : count;
  }
  bool is_reduction() const { return Reduces(collective); }
  bool has_root() const {
    return collective == Collective::kReduce || collective == Collective::kBroadcast ||
           collective == Collective::kGather || collective == Collective::kScatter;
  }
};

// A send to another rank, or a receive from one.
struct MessageTask {
  bool is_send = false;
  int peer = 0;
  std::byte* buffer = nullptr;  // The buffer of a send is not written.
  size_t count = 0;
  DataType type = DataType::kInt8;

  size_t bytes() const { return count * SizeOf(type); }
};

struct OneSidedTask {
  std::shared_ptr<const OneSidedCall> call;
};

// What a communicator executes.
using Task = std::variant<CollectiveTask, MessageTask, OneSidedTask>;

}  // namespace tutti
