#pragma once

// Operations on tensors in GPUs' memory: intermediate steps are queued on the GPU, and neither the
// ranks' threads nor the coordinator's wait for the GPU. A batch is performed when its operations
// are queued.
//
// Operations that a GPU's communicator does not have go through the host's memory, like tensors of
// the host: reductions of 16-bit integers, compression, scale factors but for sums, averages and
// Adasum of floats; Adasum, where the library has no code for the GPUs; and everything, where the
// GPUs of the ranks cannot be joined. A rank uses one GPU in a process set, the GPU of its first
// tensor.
//
// Admit from any thread, one at a time; Perform from one thread at a time, on all ranks alike.

#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "coordinator/gpu.h"
#include "coordinator/gpu_trace.h"
#include "coordinator/performer.h"

namespace tutti::coordinator {

class GpuPerformer {
 public:
  // How the GPUs of all ranks are joined; the same on all ranks.
  struct Joined {
    // In the order in which they are asked; none where the GPUs cannot be joined.
    std::vector<std::unique_ptr<Operations>> operations;
    bool combines = false;  // The library does the arithmetic of Adasum on all of them.
  };
  struct Hooks {
    // Returns the GPU of the given number, with a stream for this set; -1: a GPU for a rank that
    // has used none and stands in for others. Local.
    std::function<Result<std::shared_ptr<Gpu>>(int device)> open;
    // Joins the GPU with the GPUs of the set's other ranks. All of them call, at the same point in
    // the order of batches.
    std::function<Result<Joined>(const std::shared_ptr<Gpu>& gpu)> join;
  };
  // `host` outlives the object and is used in Perform.
  GpuPerformer(Performer& host, int rank, std::vector<int> members, Performer::Activity activity,
               Hooks hooks, GpuTrace::Hooks trace = {});
  // Waits for the queued work, which a broken communicator ends: afterwards the work's buffers and
  // the communicator may go.
  ~GpuPerformer();
  GpuPerformer(const GpuPerformer&) = delete;
  GpuPerformer& operator=(const GpuPerformer&) = delete;

  // Notes the device of a requested tensor, and returns the mark after which the tensor is ready.
  Result<std::shared_ptr<GpuMark>> Admit(int device, void* stream);
  // Fills in the tickets of the tensors, as Performer::Perform does.
  Status Perform(std::vector<Response>& batch);
  // Waits until the queued work is done.
  void Settle();

 private:
  Result<std::shared_ptr<Gpu>> Find(int device);
  Status Join();
  bool Queues(const Response& response) const;
  Status Queue(std::vector<Response>& batch);
  Status GoThroughHost(std::vector<Response>& batch);
  // Has the timeline show when the GPU does the work queued up to `done`.
  void Trace(const std::vector<Response>& batch, const std::shared_ptr<Gpu>& gpu,
             const std::shared_ptr<GpuMark>& done);

  Performer& host_;
  const int rank_;
  const std::vector<int> members_;
  const Performer::Activity activity_;
  const Hooks hooks_;
  Mutex mutex_;
  std::shared_ptr<Gpu> gpu_ TUTTI_GUARDED_BY(mutex_);  // set once
  bool joined_ = false;
  std::unique_ptr<Performer> queue_;  // null: everything goes through the host
  bool combines_ = false;             // The queued operations take Adasum.
  GpuTrace trace_;
};

}  // namespace tutti::coordinator
