#pragma once

// Operations by the functions of nccl.h, from several libraries: Tutti's own on a stream of a GPU,
// another library's on a stream (gpu_communicator.h), or a library's in host memory, which Tutti's
// takes and NVIDIA's does not.

#include <bitset>
#include <cstddef>
#include <memory>
#include <string>

#include "coordinator/gpu.h"
#include "coordinator/nccl_library.h"
#include "coordinator/operations_plugin.h"
#include "nccl.h"

namespace tutti::coordinator {

// A communicator, and the frame around a call on the communicator. One thread at a time.
class LibraryComm {
 public:
  virtual ~LibraryComm() = default;
  virtual const NcclFunctions& functions() const = 0;
  virtual ncclComm_t get() const = 0;
  // Called before each call, or group of calls. After a successful Begin, End gets the result of
  // the calls.
  virtual Status Begin() { return Status::Ok(); }
  virtual Status End(ncclResult_t result);
};

// The kinds of operations that are taken, of the five that move data: bit i is OpKind i.
using TakenKinds = std::bitset<5>;
inline constexpr TakenKinds kAllKinds{0b11111};
inline bool IsTaken(const TakenKinds& taken, OpKind kind) {
  const auto bit = static_cast<size_t>(kind);
  return bit < taken.size() && taken[bit];
}

// Returns this library's own communicator, which remains the property of the caller.
std::shared_ptr<LibraryComm> BorrowComm(ncclComm_t comm);

struct LibraryOperationsOptions {
  std::string name = "nccl";
  int rank = 0;
  int num_ranks = 1;
  void* stream = nullptr;  // The operations queue their work on the stream.
  TakenKinds takes = kAllKinds;
  // Says whether 8-bit floats are reduced.
  bool reduces_float8 = true;
};
std::unique_ptr<Operations> MakeLibraryOperations(std::shared_ptr<LibraryComm> comm,
                                                  LibraryOperationsOptions options);

// Makes this library's own operations on `comm`, which remains the caller's. The operations queue
// their work on `stream`.
std::unique_ptr<Operations> MakeStreamOperations(ncclComm_t comm, int rank, int num_ranks,
                                                 void* stream);

// Makes allreduce and allgather of tensors on GPUs in two levels: the plan of
// MakeHierarchicalOperations for host memory, made of calls that every library has, queued on one
// stream. Averages of integers are not taken, because an average of averages would be truncated
// twice.
struct GpuHierarchyOptions {
  std::shared_ptr<LibraryComm> local;
  std::shared_ptr<LibraryComm> cross;
  HierarchyShape shape;
  void* stream = nullptr;
  TakenKinds takes = kAllKinds;  // Only its allreduce and allgather count.
  bool reduces_float8 = true;
  // May change between operations, on all ranks alike.
  std::shared_ptr<const HierarchySwitches> switches;
};
std::unique_ptr<Operations> MakeGpuHierarchy(GpuHierarchyOptions options);

// Makes operations of a plugin, MPI's, on the memory of a GPU: pointers to it are passed to the
// plugin as they are.
//
// Such libraries know no streams and block. Therefore a call waits in its thread until the GPU has
// done all work queued on the set's stream, and the result is ready when the call returns. An
// average is the plugin's sum, divided in the host's memory. Scale factors are not taken.
struct BlockingGpuOptions {
  std::unique_ptr<Operations> operations;  // opened for GPUs' memory (OperationsGroup)
  std::shared_ptr<Gpu> gpu;
  int rank = 0;
  int num_ranks = 1;
  TakenKinds takes = kAllKinds;
};
std::unique_ptr<Operations> MakeBlockingGpuOperations(BlockingGpuOptions options);

// Loads a library, by file name, for tensors in host memory.
Result<std::shared_ptr<OperationsPlugin>> LoadNcclPlugin(const std::string& file);

}  // namespace tutti::coordinator
