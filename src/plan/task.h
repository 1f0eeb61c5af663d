#pragma once

// Defines Task: one checked call of the API in the form that a communicator executes. A task is a
// collective, a message or a one-sided call.

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

// Describes the reduction of a call.
struct ReduceOp {
  ReduceKind kind = ReduceKind::kSum;
  bool average = false;
  bool pre_multiply = false;
  uint64_t scalar = 0;  // With pre_multiply, the factor as an element.
  // Where live_scalar is not null, the operation reads the factor from this address when it runs.
  const void* live_scalar = nullptr;
  uint8_t number = 0;  // The number of the operator, as the signature of a call contains it.
};

// Holds the part of each rank in a buffer: its length and its displacement, in elements.
struct RankParts {
  std::vector<size_t> counts, offsets;

  size_t Size(int rank) const { return counts[static_cast<size_t>(rank)]; }
  size_t Offset(int rank) const { return offsets[static_cast<size_t>(rank)]; }
  size_t Longest() const { return *std::max_element(counts.begin(), counts.end()); }
  size_t Total() const { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }
  // Returns the end of the last part with elements.
  size_t End() const {
    size_t end = 0;
    for (size_t i = 0; i < counts.size(); ++i)
      if (counts[i] > 0) end = std::max(end, offsets[i] + counts[i]);
    return end;
  }
};

// Holds the parts of a variable-size collective.
struct VariableParts {
  RankParts sends;  // Where HasCountsByPair; otherwise empty.
  RankParts recvs;
};

// Represents a one-sided call. window/one_sided.h has the implementations. The call takes its turn
// among the operations of a communicator.
class OneSidedCall {
 public:
  virtual ~OneSidedCall() = default;
  // Returns whether the call waits for other ranks. In a group, calls that wait run after all other
  // calls, because another rank may be waiting for the other calls.
  virtual bool waits() const = 0;
  // Returns an error if the call cannot be queued on a device stream. The communicator asks all
  // calls of a group before it queues any of them.
  virtual Status Check(void* /*stream*/) const { return Status::Ok(); }
  // Makes the call, or queues it on a device stream.
  virtual Status Run(void* stream) const = 0;
};

// Holds a call's wishes beyond the settings of its communicator. All ranks must have the same
// wishes.
struct CallWishes {
  bool deterministic = false;
  bool demands_algorithms = false;  // The call fails unless one of `algorithms` serves it.
  uint32_t algorithms = 0;          // A bit for each allowed Algorithm. 0: all.
  int64_t timeout_ns = 0;    // The longest time without progress. 0: the communicator's limit.
  uint32_t most_blocks = 0;  // The most blocks of a kernel, as far as possible. 0: no limit.

  friend bool operator==(const CallWishes&, const CallWishes&) = default;
};

// Holds the extras of a call that concern its own rank alone. The extras of other ranks may differ.
struct CallExtras {
  uint64_t profiler_tag = 0;  // A tag for profiler plugins. 0: none.
  // GPUs: a CUDA event of the caller, recorded once all blocks of the call's kernel have begun.
  // Null: none.
  void* launch_event = nullptr;
  // Hosts: a function that runs when the operation begins. The function may run several times, or
  // never.
  std::function<void()> on_begin = {};
};

// Describes a call of a collective.
struct CollectiveTask {
  Collective collective = Collective::kAllReduce;  // Not kSendRecv.
  const void* send = nullptr;
  void* recv = nullptr;
  // The count as in NCCL's calls: of each rank for AllGather, ReduceScatter, AlltoAll, Gather and
  // Scatter. 0 for a collective with `parts`.
  size_t count = 0;
  DataType type = DataType::kInt8;
  ReduceOp op = {};
  int root = 0;
  CallWishes wishes = {};
  std::shared_ptr<const CallExtras> extras = {};    // Null for a call without extras.
  std::shared_ptr<const VariableParts> parts = {};  // For variable-size collectives.
  // The buffers of an AllReduce of many buffers, instead of `send` and `recv`. `count` is the sum
  // of their counts.
  std::shared_ptr<const ScatteredBuffers> scattered = {};

  size_t elem_bytes() const { return SizeOf(type); }
  // Returns `count`, or the elements of all parts that this rank knows, in the larger buffer.
  size_t total_count() const {
    return parts ? std::max(parts->sends.Total(), parts->recvs.Total()) : count;
  }
  size_t bytes() const { return elem_bytes() * total_count(); }
  // Returns the count by which all ranks plan alike: `count`, or the length of the longest part.
  // Returns 0 where no rank knows all parts.
  size_t plan_count() const {
    if (!parts) return count;
    return HasCountsByPair(collective) ? 0 : parts->recvs.Longest();
  }
  // Returns whether all ranks know that the operation moves no element. A barrier has no elements
  // but has to run.
  bool moves_nothing() const {
    return plan_count() == 0 && collective != Collective::kBarrier && !HasCountsByPair(collective);
  }
  bool is_reduction() const { return Reduces(collective); }
  bool has_root() const { return HasRoot(collective); }
};

// Holds the bytes of the buffers that a rank uses in a collective; 0 for an unused buffer.
struct BufferSizes {
  size_t send = 0;
  size_t recv = 0;
};
// Returns the bytes from the beginning of each buffer of `task` that `rank` uses. The buffers of
// task.scattered have no part in the sizes.
BufferSizes SizesOf(const CollectiveTask& task, int rank, int num_ranks);

// Describes a send to another rank, or a receive from another rank.
struct MessageTask {
  bool is_send = false;
  int peer = 0;
  std::byte* buffer = nullptr;  // Never written to by a send.
  size_t count = 0;
  DataType type = DataType::kInt8;

  size_t bytes() const { return count * SizeOf(type); }
};

struct OneSidedTask {
  std::shared_ptr<const OneSidedCall> call;
};

// Holds any call that a communicator executes.
using Task = std::variant<CollectiveTask, MessageTask, OneSidedTask>;

}  // namespace tutti
