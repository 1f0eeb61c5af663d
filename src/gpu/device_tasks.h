#pragma once

// Pure functions that translate a task for the kernels of a mesh or of channels: its elements and
// its reduction.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/mesh_args.h"
#include "plan/plan.h"

namespace tutti {

// Return the size and the number of a task's elements, as kernels count them. Kernels that only
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

// Returns the operator of a kernel for a reduction that runs as planned. Tasks without a reduction
// get the default.
cuda::ReduceArgs ReduceArgsOf(const CollectiveTask& task, const PlanContext& context,
                              const Plan& plan);

}  // namespace tutti
