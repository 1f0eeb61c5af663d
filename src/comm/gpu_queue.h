#pragma once

// What all ways of running operations on a GPU have in common: the word by which kernels are told to
// give up, the order of operations on different streams, and the look at a caller's pointers.
//
// Operations of a communicator run one after another, in the order of their launches, also when
// they are on different streams: a launch on another stream than the last waits for that one by an
// event. Launches come from one thread at a time; Abort from any.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "backend/cuda/device.h"
#include "base/status.h"
#include "comm/gpu_operations.h"

namespace tutti {

class GpuQueue {
 public:
  // `check_pointers`: CheckBuffers looks at every buffer.
  static Result<std::unique_ptr<GpuQueue>> Create(const cuda::Device& device, bool check_pointers);
  ~GpuQueue();

  const cuda::Device& device() const { return device_; }
  // Pinned; raised by Abort, and looked at by every kernel that waits.
  const uint32_t* abort_word() const { return abort_word_; }
  void Abort();
  Status Drain();

  // REQUIRES, of what follows: the device's context is current.
  Status OrderBehindLast(cuda::Stream stream);
  // The streams of the messages among the tasks, one behind the other. One of them carries all
  // messages: it is ordered behind this, and this once more behind it, for what comes next on each.
  Status OrderMessages(std::span<const DeviceTask> tasks);
  bool IsCaptured(cuda::Stream stream) const;
  Status Copy(void* to, const void* from, size_t bytes, cuda::Stream stream) const;
  // InvalidArgument for memory that this GPU does not reach.
  Status CheckBuffers(const Task& task) const;
  // The messages of `rank` to itself among the tasks of a group: the n-th send meets the n-th
  // receive.
  Status CopyOwnMessages(std::span<const DeviceTask> tasks, int rank, cuda::Stream stream) const;

 private:
  GpuQueue(const cuda::Device& device, bool check_pointers)
      : device_(device), check_pointers_(check_pointers) {}
  Status CheckPointer(const void* pointer, const char* what) const;

  const cuda::Device& device_;
  const bool check_pointers_;
  uint32_t* abort_word_ = nullptr;
  // The streams of the last launches. What is captured has an order of its own: it runs when its
  // graph is launched, whose place among other work is its user's.
  std::optional<cuda::Stream> last_launched_;
  std::optional<cuda::Stream> last_captured_;
  cuda::Event order_ = nullptr;
};

}  // namespace tutti
