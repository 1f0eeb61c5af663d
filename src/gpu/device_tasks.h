#pragma once

// These functions find out what launching a task on a GPU takes, however the GPUs are joined: its
// elements and its reduction as kernels see them. Pure functions.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/mesh_args.h"
#include "plan/planner.h"

namespace tutti {

// Return the size of a task's elements and their number, as kernels count them: kernels that only
// move data know no types and count bytes.
inline size_t KernelElemBytes(const CollectiveTask& task) {
  return task.is_reduction() ? task.elem_bytes() : 1;
}
inline size_t KernelCount(const CollectiveTask& task) {
  return task.is_reduction() ? task.count : task.count * task.elem_bytes();
}

// Returns how many of `most` blocks, or channels, a call with these wishes may take.
inline uint32_t WishedBlocks(const CallWishes& wishes, uint32_t most) {
  return wishes.most_blocks == 0 ? most : std::min(most, wishes.most_blocks);
}

// Returns what a kernel does to the elements of a reduction that runs as planned; nothing for other
// tasks.
cuda::ReduceArgs ReduceArgsOf(const CollectiveTask& task, const PlanContext& context,
                              const Plan& plan);

}  // namespace tutti
