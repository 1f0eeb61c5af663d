#pragma once

// Tells whether a GPU reaches the memory that its rank's operations are given.
//
// A kernel that touches what it does not reach ends CUDA for the whole process. So the beginning of
// each buffer is always looked at (0.2 us each), which finds memory of the host that CUDA does not
// know: the mistake that is made. With NCCL_CHECK_POINTERS the end is looked at, too, and on which
// GPU it is.

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
  // Returns it for a buffer by itself.
  Status CheckBuffer(const void* begin, size_t bytes, const char* what) const;
  // Returns whether it is memory of the host that CUDA knows.
  bool IsOfHost(const void* place) const;
  // Returns whether its pages move between the host and GPUs (cudaMallocManaged).
  bool IsManaged(const void* place) const;

 private:
  Status CheckCollective(const CollectiveTask& task) const;
  // Returns what kind of memory it is, or nothing where CUDA does not know it.
  std::optional<unsigned> TypeOf(const void* place) const;
  Status CheckPlace(const void* begin, const void* place, const char* what) const;

  const cuda::Device& device_;
  const int rank_;
  const int num_ranks_;
  const bool thorough_;
  bool reaches_any_ = false;  // the host's memory, whatever CUDA knows of it
};

}  // namespace tutti
