#pragma once

// Plans how the messages of a group are shared out over kernels, flows and channels (GpuChannels).
// Pure functions of the calls: both ends of a pair cut a message alike.
//
// A message is cut into parts, one part for each of its channels. The number of parts follows from
// the length. All ranks walk through the messages in one order: by the message's number within its
// pair, then by the distance from sender to receiver. The send and the receive of a rank in the
// same place of this order stay together. A kernel takes as many places as it has room for. The
// first unfinished message of all is therefore in hand at both of its ends, and no circle of
// waiting ranks can arise, however differently ranks fill their kernels.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/channel_args.h"
#include "plan/copy_piece.h"
#include "plan/task.h"

namespace tutti {

// Describes a part of a message, or of two messages of equal length that are swapped.
struct FlowPart {
  int peer = -1;
  uint32_t channel = 0;
  cuda::MessageKind kind = cuda::MessageKind::kSend;
  cuda::FlowMessage message;
};

// Lists the parts that a kernel moves.
using FlowKernel = std::vector<FlowPart>;

struct FlowPlace {
  int rank = 0;
  int num_ranks = 1;
  uint32_t channels = 1;  // The most channels of a message.
};

// Plans messages between this rank and its peers. Messages of the rank to itself are left out.
std::vector<FlowKernel> PlanFlows(std::span<const MessageTask> messages, const FlowPlace& place);

// Adds short messages of the rank to itself to the first kernel, as far as the kernel has room.
// Returns the messages that were not added.
std::vector<CopyPiece> AddOwnMessages(std::span<const CopyPiece> own, int rank,
                                      std::vector<FlowKernel>& kernels);

// Plans an AlltoAll in place.
std::vector<FlowKernel> PlanSwaps(const CollectiveTask& task, const FlowPlace& place);

}  // namespace tutti
