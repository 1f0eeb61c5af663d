#pragma once

// What all ways of running operations on a GPU have in common: the word by which kernels are told to
// give up, the order of operations on different streams, and the look at a caller's pointers.
//
// Operations of a communicator run one after another, in the order of their launches, also when
// they are on different streams: a launch on another stream than the last waits for that one by an
// event. Events are recorded right behind the launches. So nothing waits for what the program queued
// there later, and no stream is touched that the program may have destroyed since.
//
// Launches come from one thread at a time, between OrderBehindLast and Leave; Abort and Drain from
// any.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/pinned_pool.h"
#include "base/status.h"
#include "comm/gpu_operations.h"

namespace tutti {

// What an AlltoAllV or an AllGatherV is made of, on a stream.
std::vector<DeviceTask> DeviceMessagesOf(const Task& task, int rank, int num_ranks,
                                         cuda::Stream stream);

class GpuQueue {
 public:
  // `check_pointers`: CheckBuffers looks at every buffer.
  static Result<std::unique_ptr<GpuQueue>> Create(const cuda::Device& device, bool check_pointers);
  ~GpuQueue();

  const cuda::Device& device() const { return device_; }
  // Pinned; raised by Abort, and looked at by every kernel that waits.
  const uint32_t* abort_word() const { return reinterpret_cast<uint32_t*>(abort_word_.data()); }
  void Abort();
  // Until the last operation is done, and no graph with operations is under way.
  Status Drain();

  // REQUIRES, of what follows: the device's context is current.
  // What is launched on `stream` from here on runs behind all that was launched before.
  Status OrderBehindLast(cuda::Stream stream);
  // After the last launch of a call, which came out as `launched`: what comes next may wait for it.
  // Until here the streams of this call's launches are taken to be alive.
  Status Leave(Status launched);
  // The streams of the messages among the tasks, one behind the other. One of them carries all
  // messages: it is ordered behind this, and this once more behind it, for what comes next on each.
  Status OrderMessages(std::span<const DeviceTask> tasks);
  // Whether the stream of the last OrderBehindLast is being captured.
  bool captured() const { return entered_ && entered_->captured; }
  // Holds `what` until the graph that is being captured, and all that is made of it, is gone and has
  // done its last run. It may be let go on a thread of the driver's, where CUDA may not be called.
  // REQUIRES: captured().
  Status KeepInGraph(std::shared_ptr<const void> what) const {
    return KeepIn(entered_->graph, std::move(what));
  }
  Status Copy(void* to, const void* from, size_t bytes, cuda::Stream stream) const;
  // InvalidArgument for memory that this GPU does not reach.
  Status CheckBuffers(const Task& task) const;
  // The messages of `rank` to itself among the tasks of a group: the n-th send meets the n-th
  // receive.
  Status CopyOwnMessages(std::span<const DeviceTask> tasks, int rank, cuda::Stream stream) const;

 private:
  GpuQueue(const cuda::Device& device, bool check_pointers)
      : device_(device), check_pointers_(check_pointers) {}
  // A stream, told from others that have had its address.
  struct Place {
    cuda::Stream stream = nullptr;
    std::optional<uint64_t> id = std::nullopt;  // of the stream; none: the driver cannot say
    bool captured = false;
    uint64_t capture = 0;  // which one
    cuda::Graph graph = nullptr;
  };
  // Where the last launch of a kind was, and the event behind it.
  struct Last {
    std::optional<Place> place;
    cuda::Event event = nullptr;
  };
  Result<Place> Look(cuda::Stream stream) const;
  Status KeepIn(cuda::Graph graph, std::shared_ptr<const void> what) const;
  Status CheckPointer(const void* pointer, const char* what) const;

  const cuda::Device& device_;
  const bool check_pointers_;
  cuda::PinnedBlock abort_word_;
  // What is captured has an order of its own: it runs when its graph is launched, whose place among
  // other work is its user's.
  Last launched_;
  Last captured_;
  std::optional<Place> entered_;  // between OrderBehindLast and Leave
  // Every graph with operations has a share in it.
  std::shared_ptr<const int> graphs_ = std::make_shared<int>(0);
};

}  // namespace tutti
