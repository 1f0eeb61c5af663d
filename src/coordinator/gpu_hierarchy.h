#pragma once

// Allreduce and allgather of tensors on GPUs in two levels: inside a host, and across hosts between
// ranks of the same place on their hosts. The plan of MakeHierarchicalOperations for host memory,
// made of calls that every library has, queued on one stream.
//
//   host 0: rank 0, rank 1      allreduce: reduce-scatter inside each host, allreduce of each
//   host 1: rank 2, rank 3      piece across hosts, all-gather inside
//
// Adasum goes by AdasumInTwoLevels (adasum.h).

#include <memory>

#include "coordinator/library_operations.h"

namespace tutti::coordinator {

struct GpuHierarchyOptions {
  std::shared_ptr<LibraryComm> local;
  std::shared_ptr<LibraryComm> cross;
  HierarchyShape shape;
  void* stream = nullptr;
  TakenKinds takes;  // Only its allreduce and allgather count.
  bool reduces_float8 = true;
  // May change between operations, on all ranks alike.
  std::shared_ptr<const HierarchySwitches> switches;
};
// Averages of integers are not taken, because an average of averages would be truncated twice.
std::unique_ptr<Operations> MakeGpuHierarchy(GpuHierarchyOptions options);

}  // namespace tutti::coordinator
