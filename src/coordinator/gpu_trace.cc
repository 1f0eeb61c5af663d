#include "coordinator/gpu_trace.h"

#include <chrono>
#include <utility>

#include "sys/thread.h"

namespace tutti::coordinator {
namespace {

// Time between two questions to the GPU, and thus the error of the times in the timeline. A
// question takes a microsecond or two, and the thread uses a few percent of a core.
constexpr std::chrono::microseconds kPause(50);
// The most batches that wait to be followed. A GPU that is further behind is stuck, which the
// timeline shows without further batches.
constexpr size_t kMostBatches = 4096;

}  // namespace

GpuTrace::~GpuTrace() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    ending_ = true;
    thread.swap(thread_);
  }
  wakes_.NotifyAll();
  if (thread.joinable()) thread.join();
}

void GpuTrace::Add(Batch batch) {
  const MutexLock lock(mutex_);
  if (ending_ || batches_.size() >= kMostBatches) return;
  if (!thread_.joinable()) {
    Result<std::thread> thread = StartThread("tutti-gpu-trace", [this] { Loop(); });
    if (!thread.ok()) return;
    thread_ = std::move(*thread);
  }
  batches_.push_back(std::move(batch));
  wakes_.NotifyOne();
}

void GpuTrace::Loop() {
  for (;;) {
    Batch batch;
    {
      MutexLock lock(mutex_);
      while (batches_.empty() && !ending_) wakes_.Wait(lock);
      if (ending_) return;
      batch = std::move(batches_.front());
      batches_.pop_front();
    }
    Follow(batch);
  }
}

void GpuTrace::Follow(const Batch& batch) {
  std::vector<std::string> rows;
  for (const std::string& tensor : batch.tensors) rows.push_back(tensor + " (GPU)");
  for (const std::string& row : rows) {
    hooks_.begin(row, batch.operation);
    hooks_.begin(row, "WAIT_FOR_DATA");
  }
  if (AwaitInputs(batch, rows)) {
    for (const std::string& row : rows) hooks_.begin(row, batch.mover);
    AwaitMark(*batch.gpu, *batch.done);
  }
  for (const std::string& row : rows) hooks_.end(row);
}

bool GpuTrace::AwaitInputs(const Batch& batch, const std::vector<std::string>& rows) {
  std::vector<bool> there(rows.size(), false);
  for (size_t left = rows.size();;) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (there[i]) continue;
      const Result<bool> passed = batch.gpu->Passed(*batch.ready[i]);
      if (!passed.ok()) return false;
      if (!*passed) continue;
      there[i] = true;
      if (--left > 0) hooks_.begin(rows[i], "WAIT_FOR_OTHER_TENSOR_DATA");
    }
    if (left == 0) return true;
    if (!Pause()) return false;
  }
}

void GpuTrace::AwaitMark(Gpu& gpu, const GpuMark& mark) {
  for (;;) {
    const Result<bool> passed = gpu.Passed(mark);
    if (!passed.ok() || *passed || !Pause()) return;
  }
}

bool GpuTrace::Pause() {
  std::this_thread::sleep_for(kPause);
  const MutexLock lock(mutex_);
  return !ending_;
}

}  // namespace tutti::coordinator
