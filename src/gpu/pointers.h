#pragma once

// GpuPointers tells whether a GPU reaches the buffers of its rank's operations.
//
// A kernel that touches unreachable memory ends CUDA for the whole process. Every call therefore
// checks the beginning of each buffer (0.2 us each). The check finds pageable memory of the host,
// which is the usual mistake. NCCL_CHECK_POINTERS adds checks of the end of a buffer and of its
// GPU.

#include <cstddef>
#include <optional>

#include "backend/cuda/device.h"
#include "base/status.h"
#include "plan/task.h"

namespace tutti {

class GpuPointers {
 public:
  GpuPointers(const cuda::Device& device, int rank, int num_ranks, bool thorough);

  // Returns InvalidArgument for a task with a buffer, or a device's scalar, that the GPU does not
  // reach. REQUIRES: the device's context is current.
  Status Check(const Task& task) const;
  // Checks a single buffer, with the same error.
  Status CheckBuffer(const void* begin, size_t bytes, const char* what) const;
  // Returns whether CUDA knows `place` as memory of the host.
  bool IsOfHost(const void* place) const;
  // Returns whether the pages at `place` move between the host and GPUs (cudaMallocManaged).
  bool IsManaged(const void* place) const;

 private:
  Status CheckCollective(const CollectiveTask& task) const;
  // Returns CUDA's type of the memory, or nothing where CUDA does not know the memory.
  std::optional<unsigned> TypeOf(const void* place) const;
  Status CheckPlace(const void* begin, const void* place, const char* what) const;

  const cuda::Device& device_;
  const int rank_;
  const int num_ranks_;
  const bool thorough_;
  bool reaches_any_ = false;  // The GPU reaches all memory of the host, whatever CUDA knows.
};

}  // namespace tutti
