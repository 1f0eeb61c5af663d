#pragma once

// Plans how the messages of a group are shared out over kernels, flows and channels (GpuChannels).
// Pure functions of the calls, so that both ends of a pair cut alike.
//
// A message is cut into parts, one for each channel that it takes, which follows from its length.
// All ranks walk through the messages in one order: by their number within their pair, then by the
// distance from sender to receiver; what a rank sends and what it receives in one place stays
// together. A kernel holds as many places as it has room for. So the first message of all that is
// not through yet is in hand at both of its ends, and nothing waits in a circle, however
// differently ranks fill their kernels.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/channel_args.h"
#include "plan/copy_piece.h"
#include "plan/task.h"

namespace tutti {

// A part of a message, or of two messages of one length that swap what they carry.
struct FlowPart {
  int peer = -1;
  uint32_t channel = 0;
  cuda::FlowKind kind = cuda::FlowKind::kSend;
  cuda::FlowMessage message;
};

// Lists what a kernel does.
using FlowKernel = std::vector<FlowPart>;

struct FlowPlace {
  int rank = 0;
  int num_ranks = 1;
  uint32_t channels = 1;  // A message may take so many.
};

// Plans messages, without those of the rank to itself.
std::vector<FlowKernel> PlanFlows(std::span<const MessageTask> messages, const FlowPlace& place);

// Has the first of the kernels copy short messages of the rank to itself, beside what moves to and
// from others, as far as it has room. Returns those that it does not take.
std::vector<CopyPiece> AddOwnMessages(std::span<const CopyPiece> own, int rank,
                                      std::vector<FlowKernel>& kernels);

// Plans an AlltoAll in place.
std::vector<FlowKernel> PlanSwaps(const CollectiveTask& task, const FlowPlace& place);

}  // namespace tutti
