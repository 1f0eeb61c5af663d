#pragma once

// How a rank that is a GPU runs its operations: GpuMesh where all ranks reach one window of each
// other, GpuRelay where the data goes through this host's own communicator.
//
// Launches come from one thread at a time; Abort from any.

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "comm/gpu_windows.h"
#include "comm/task.h"

namespace tutti {

// A task and the CUDA stream (a cudaStream_t) that it was issued on.
struct DeviceTask {
  Task task;
  void* stream = nullptr;
};

class GpuOperations {
 public:
  virtual ~GpuOperations() = default;

  // Queues the tasks of one group: collectives in order, then all sends and receives together. Waits
  // for no other rank.
  virtual Status Launch(std::span<const DeviceTask> tasks) = 0;
  // Ends the waits of all kernels, now and later.
  virtual void Abort() = 0;
  // Until the GPU has done all that was queued on it.
  virtual Status Drain() = 0;
  // Ends the threads that serve kernels. REQUIRES: drained, or aborted; nothing is launched any more.
  virtual void StopThreads() {}

  // All ranks call it alike, with buffers of one length. `*verdict`, the same on every rank: whether
  // operations work in the buffers of all from now on; the result names the registration, or is null.
  virtual Result<const void*> Register(const GpuPeers& /*peers*/, std::span<std::byte> /*buffer*/,
                                       Status* verdict) {
    *verdict = InvalidUsage("data goes through the hosts");
    return nullptr;
  }
  // Takes it back.
  virtual void Forget(const void* /*registration*/) {}

  // Memory of the GPU, and pinned memory of the host, that only this communicator needs.
  virtual uint64_t DeviceBytes() const = 0;
  virtual uint64_t PinnedBytes() const = 0;
  // How ranks are joined, in words, for the log; and what Launch would do with a task.
  virtual std::string DescribeTransport() const = 0;
  virtual std::string Describe(const Task& task) const = 0;
};

}  // namespace tutti
