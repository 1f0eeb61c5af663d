#pragma once

// How a rank that is a GPU runs its operations: GpuMesh where all ranks reach one window of each
// other, GpuRelay where the data goes through this host's own communicator.
//
// Launches come from one thread at a time; Abort from any.

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "gpu/windows.h"
#include "plan/task.h"

namespace tutti {

class CallChecker;

// A task and the CUDA stream (a cudaStream_t) that it was issued on.
struct DeviceTask {
  Task task;
  void* stream = nullptr;
};

enum class QueueState {
  kDone,
  kUnderWay,
  kUnknown,  // CUDA has failed, or an operation was launched whose end leaves no mark
};

class GpuOperations {
 public:
  virtual ~GpuOperations() = default;

  // Queues the tasks of one group: collectives in order, then all sends and receives together.
  // Waits for no other rank. `*begun`: something may have been queued that meets the kernels of
  // other ranks. A failure then leaves this rank out of step with them; any other is as if nothing
  // had been called.
  virtual Status Launch(std::span<const DeviceTask> tasks, bool* begun) = 0;
  // Ends the waits of all kernels, now and later.
  virtual void Abort() = 0;
  // Of what was queued last. May wait for whoever else waits for the GPU.
  virtual QueueState State() const = 0;
  // Who is told of every operation that is launched, until this is called again; null: nobody. What
  // is captured is no call: how often a rank captures, and in what order, is its own affair.
  // REQUIRES: nothing is being launched.
  void SetCalls(CallChecker* calls) { calls_ = calls; }
  // Until the GPU has done all that was queued on it.
  virtual Status Drain() = 0;
  // Ends the threads that serve kernels. REQUIRES: drained, or aborted; nothing is launched any
  // more.
  virtual void StopThreads() {}

  // All ranks call it alike, with buffers of one length. `*verdict`, the same on every rank:
  // whether operations work in the buffers of all from now on; the result names the registration,
  // or is null.
  virtual Result<const void*> Register(const GpuPeers& /*peers*/, std::span<std::byte> /*buffer*/,
                                       Status* verdict) {
    *verdict = InvalidUsage("data goes through the hosts");
    return nullptr;
  }
  // Takes it back, when the GPU has done all that was queued; after a failure the memory stays
  // mapped as long as this object lives.
  virtual Status Forget(const void* /*registration*/) { return Status::Ok(); }

  // Memory of the GPU, and pinned memory of the host, that only this communicator needs.
  virtual uint64_t DeviceBytes() const = 0;
  virtual uint64_t PinnedBytes() const = 0;
  // How long a task takes by itself, as far as is known.
  virtual double PredictUs(const Task& task) const = 0;
  // How ranks are joined, in words, for the log; and what Launch would do with a task.
  virtual std::string DescribeTransport() const = 0;
  virtual std::string Describe(const Task& task) const = 0;

 protected:
  CallChecker* calls_ = nullptr;
};

}  // namespace tutti
