#pragma once

// These functions find out what launching a task on a GPU takes, however the GPUs are joined: its
// elements and its reduction as kernels see them, and tasks that are made of others. Pure
// functions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backend/cuda/copy_args.h"
#include "backend/cuda/mesh_args.h"
#include "plan/algorithm_table.h"
#include "plan/task.h"

namespace tutti {

// Return the size of a task's elements and their number, as kernels count them: kernels that only
// move data know no types and count bytes.
inline size_t KernelElemBytes(const Task& task) {
  return task.is_reduction() ? task.elem_bytes() : 1;
}
inline size_t KernelCount(const Task& task) {
  return task.is_reduction() ? task.count : task.count * task.elem_bytes();
}

// Returns how many of `most` blocks, or channels, a call with these wishes may take.
inline uint32_t WishedBlocks(const CallWishes& wishes, uint32_t most) {
  return wishes.most_blocks == 0 ? most : std::min(most, wishes.most_blocks);
}

// Returns what a kernel that adds in this order does to the elements of a reduction; nothing for
// other tasks.
cuda::ReduceArgs ReduceArgsOf(const Task& task, int num_ranks, AddingOrder order);

// Returns a ReduceScatterV as `rank` launches it: a Reduce for each rank's part that has elements.
std::vector<Task> ReducesOf(const Task& task, int rank, int num_ranks);

// A stretch of an AllReduce of many buffers (tuttiAllReduceMany): what is copied into the packing
// memory, which the first such AllReduce allocates; the AllReduce; and what is copied out. Nothing
// is copied where the stretch lies in one buffer, which the AllReduce then works on.
struct PackedStretch {
  std::vector<cuda::CopyPiece> in;
  Task task;
  std::vector<cuda::CopyPiece> out;
};
// Returns the stretches of `task`, of at most kGpuPackedBytes each (plan/cost_table.h). `pack` may
// be null where the task has one buffer. Small vectors then cost no operation each, and ranks may
// cut their elements as they like, since what they send one another does not show it.
std::vector<PackedStretch> PackedStretchesOf(const Task& task, std::byte* pack);

}  // namespace tutti
