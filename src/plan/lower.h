#pragma once

// Lowers a collective without a row in plan/algorithms.def to operations that the ranks can run: a
// barrier to an AllReduce of one byte, a ReduceScatterV to Reduces, an AllReduce of many buffers to
// AllReduces of packed buffers, and all remaining collectives to messages between pairs of ranks.
// All functions are pure. All ranks lower a collective in the same way, and therefore their
// operations match.

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/algorithm_table.h"
#include "plan/copy_piece.h"
#include "plan/task.h"
#include "plan/work.h"

namespace tutti {

// Holds a collective that has a row, and the copies before and after the collective.
struct LoweredStep {
  std::vector<CopyPiece> before;
  CollectiveTask task;
  std::vector<CopyPiece> after;
};

// Holds either steps, to be run one after another, or messages, to be run all together.
struct Lowered {
  std::vector<LoweredStep> steps;
  std::vector<MessageTask> messages;
};

// Describes the rank for which a task is lowered.
struct LowerPlace {
  int rank = 0;
  int num_ranks = 1;
  std::byte* byte = nullptr;  // The buffer of the AllReduce that stands for a barrier.
  // The memory into which the buffers of an AllReduce of many buffers are packed, and its length.
  // With a length of 0 nothing is packed and each buffer is a step of its own, as suits a
  // communicator of a single rank.
  std::byte* pack = nullptr;
  size_t pack_bytes = 0;
};

// Returns whether a task has to be lowered before planning. Ranks on hosts with a stage take
// scattered buffers one by one, and lower such a task only if the plan for Buffers::kScattered has
// no row.
inline bool NeedsLowering(RankKind kind, const CollectiveTask& task) {
  return task.scattered != nullptr || !Serves(kind, task.collective);
}

Lowered Lower(const CollectiveTask& task, const LowerPlace& place);

// Returns the messages of `rank` in a collective without additions (AlltoAll, AllGather, Gather,
// Scatter, their forms with variable sizes, and Broadcast). The messages of the rank to itself are
// among them. `send` replaces task.send.
std::vector<MessageTask> MessagesOf(const CollectiveTask& task, int rank, int num_ranks,
                                    const void* send);

// Returns the copies that replace the messages of `rank` to itself: the n-th send is matched with
// the n-th receive. Returns InvalidUsage if a message has no partner, or a partner of a different
// length. On hosts the types of both must be equal too, as the tags of messages between two ranks
// demand. GPUs ignore empty messages.
Result<std::vector<CopyPiece>> OwnCopies(std::span<const MessageTask> messages, int rank,
                                         RankKind kind);

}  // namespace tutti
