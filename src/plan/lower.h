#pragma once

// Lowers collectives to what ranks of a kind have rows for in plan/algorithms.def: a barrier to an
// AllReduce of one byte, a ReduceScatterV to Reduces, an AllReduce of many buffers to AllReduces of
// packed ones, and all that is not added to messages between pairs. Pure functions. All ranks lower
// alike, so that what they launch meets.

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "plan/algorithm_table.h"
#include "plan/copy_piece.h"
#include "plan/task.h"
#include "plan/work.h"

namespace tutti {

// A collective that has a row, and what is copied before and after it.
struct LoweredStep {
  std::vector<CopyPiece> before;
  CollectiveTask task;
  std::vector<CopyPiece> after;
};

// Steps, one after another, or messages, all together.
struct Lowered {
  std::vector<LoweredStep> steps;
  std::vector<MessageTask> messages;
};

// Says for which rank a task is lowered.
struct LowerPlace {
  RankKind kind = RankKind::kHost;
  int rank = 0;
  int num_ranks = 1;
  std::byte* byte = nullptr;  // What a barrier adds.
  // What the buffers of an AllReduce of many are packed into, at most so many bytes at a time. With
  // no bytes nothing is packed: each buffer is a step of its own, which suits a rank that is alone.
  std::byte* pack = nullptr;
  size_t pack_bytes = 0;
};

// Returns whether a task has to be lowered before it can be planned. Ranks on hosts that have stages
// take scattered buffers one by one, and lower them only where a plan for Buffers::kScattered has no
// row.
inline bool NeedsLowering(RankKind kind, const CollectiveTask& task) {
  return task.scattered != nullptr || !Serves(kind, task.collective);
}

Lowered Lower(const CollectiveTask& task, const LowerPlace& place);

// Returns the messages that a collective of parts is made of on `rank` (AlltoAll, AlltoAllV,
// AllGather, AllGatherV, Gather, Scatter, Broadcast), the rank's message to itself among them.
// `send` stands in for task.send.
std::vector<MessageTask> MessagesOf(const CollectiveTask& task, int rank, int num_ranks,
                                    const void* send);

// Returns the copies that stand for the messages of `rank` to itself: the n-th send meets the n-th
// receive. InvalidUsage where one has no partner, or a partner of another length; on hosts of
// another type too, as between two ranks, whose tags hold both. GPUs do not look at empty messages.
Result<std::vector<CopyPiece>> OwnCopies(std::span<const MessageTask> messages, int rank,
                                         RankKind kind);

}  // namespace tutti
