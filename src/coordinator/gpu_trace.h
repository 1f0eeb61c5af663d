#pragma once

// Shows in the timeline when a GPU works on tensors. For the coordinator an operation on a GPU is
// done when the operation is queued; the GPU works later, and no thread waits. While a timeline is
// written, a GpuTrace has a thread that asks the GPU for its progress. The answers stand in rows of
// their own, "NAME (GPU)", because a rank may ask for a tensor's next operation before the GPU has
// done the last:
//
//   ALLREDUCE
//     WAIT_FOR_DATA               the stream waits for what makes the tensor
//     WAIT_FOR_OTHER_TENSOR_DATA  that is there, and another tensor of the same batch is not
//     tutti                       what moves the data, copies included
//
// Without a timeline there is no thread.

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "coordinator/gpu.h"

namespace tutti::coordinator {

class GpuTrace {
 public:
  struct Hooks {
    std::function<bool()> wanted;  // Returns whether a timeline is being written.
    // The timeline's Begin and End of a row.
    std::function<void(const std::string& row, std::string_view activity)> begin;
    std::function<void(const std::string& row)> end;
  };
  // Operations that were queued together.
  struct Batch {
    std::shared_ptr<Gpu> gpu;
    std::string operation;  // A name such as ALLREDUCE.
    std::string mover;
    std::vector<std::string> tensors;
    std::vector<std::shared_ptr<GpuMark>> ready;  // The mark of each tensor.
    std::shared_ptr<GpuMark> done;
  };

  explicit GpuTrace(Hooks hooks) : hooks_(std::move(hooks)) {}
  // Ends the thread, and follows the GPU no further.
  ~GpuTrace();
  GpuTrace(const GpuTrace&) = delete;
  GpuTrace& operator=(const GpuTrace&) = delete;

  bool wanted() const { return hooks_.wanted && hooks_.wanted(); }
  // Follows the batch, once the batches before are done. Does nothing where the system grants no
  // thread, or where the GPU is very far behind.
  void Add(Batch batch);

 private:
  void Loop();
  void Follow(const Batch& batch);
  // Waits until the inputs of all tensors are ready, and tells the timeline of each. Returns false
  // for an unknown state of the inputs, or at the end of the trace.
  bool AwaitInputs(const Batch& batch, const std::vector<std::string>& rows);
  // Waits until the mark has passed, the GPU fails or the trace ends.
  void AwaitMark(Gpu& gpu, const GpuMark& mark);
  // Sleeps for a moment. Returns whether to go on.
  bool Pause();

  const Hooks hooks_;
  Mutex mutex_;
  CondVar wakes_;
  std::deque<Batch> batches_ TUTTI_GUARDED_BY(mutex_);
  bool ending_ TUTTI_GUARDED_BY(mutex_) = false;
  std::thread thread_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::coordinator
