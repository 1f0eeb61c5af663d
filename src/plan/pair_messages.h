#pragma once

// Collectives that pairs of ranks can run among themselves (AlltoAll, AlltoAllV, AllGather,
// AllGatherV, Gather, Scatter, Broadcast), as the sends and receives that they are made of.

#include <cstddef>
#include <vector>

#include "plan/task.h"

namespace tutti {

// Returns the messages that make up the collective `task` for `rank`, its message to itself among
// them. `send` stands in for task.send.
std::vector<Task> MessagesOf(const Task& task, int rank, int num_ranks, const std::byte* send);

}  // namespace tutti
