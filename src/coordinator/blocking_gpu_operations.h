#pragma once

// Operations of a plugin, MPI's, on the memory of a GPU: pointers to it are passed to the plugin as
// they are.
//
// Such libraries know no streams and block. Therefore a call waits in its thread until the GPU has
// done all work queued on the set's stream, and the result is ready when the call returns. An
// average is the plugin's sum, divided in the host's memory. Scale factors are not taken.

#include <memory>

#include "coordinator/gpu.h"
#include "coordinator/library_operations.h"
#include "coordinator/operations.h"

namespace tutti::coordinator {

struct BlockingGpuOptions {
  std::unique_ptr<Operations> operations;  // opened for GPUs' memory (OperationsGroup)
  std::shared_ptr<Gpu> gpu;
  int rank = 0;
  int num_ranks = 1;
  TakenKinds takes;
};
std::unique_ptr<Operations> MakeBlockingGpuOperations(BlockingGpuOptions options);

}  // namespace tutti::coordinator
