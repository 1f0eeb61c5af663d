// SPDX-License-Identifier: Apache-2.0
#pragma once

// Operations on tensors of GPUs. The thread that asks for an operation queues its work on a stream
// of PyTorch, and nothing waits on the host: a Work makes the streams of its waiter wait.
//
// Streams and events are PyTorch's device-agnostic classes, because the backend then needs neither
// CUDA's headers nor PyTorch's libraries for CUDA, and one binary serves builds with CUDA and
// without.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <memory>
#include <vector>

#include "library.h"
#include "mutex.h"
#include "ordered.h"
#include "work.h"

namespace tutti_c10d {

// A communicator of ranks that are GPUs. The library keeps the order of its operations on any
// streams. Any thread may use a communicator.
class DeviceCommunicator final : public OperatorMaker {
 public:
  // Takes `comm` over, whose rank is this device.
  DeviceCommunicator(std::shared_ptr<const Library> library, ncclComm_t comm, c10::Device device);
  ~DeviceCommunicator() override { End(); }

  c10::Device device() const { return device_; }
  // The stream of operations that nobody awaits at once.
  const c10::Stream& side_stream() const { return side_stream_; }

  // Queues the operation on the device's current stream.
  void Run(const Operation& operation);

  ncclRedOp_t MakePreMulSum(void* factor, ncclDataType_t type,
                            std::shared_ptr<void>& keep) override;
  const Library& library() const override { return *library_; }

  // Blocks until the device has done the present work of its current stream and the side stream.
  void AwaitStreams() const;
  // Throws the library's error where the communicator has failed or was aborted.
  void CheckHealthy() const;
  // Returns whether CheckHealthy would not throw.
  bool healthy() const;
  // Waits until the GPU has done its queued work, and ends the communicator. Operations fail from
  // now on. Does nothing the second time.
  void End();
  // Gives up work under way, from any thread, and ends the communicator.
  void Abort();

 private:
  void CheckOpen() const;

  const std::shared_ptr<const Library> library_;
  const ncclComm_t comm_;
  const c10::Device device_;
  const c10::Stream side_stream_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> aborted_{false};
  Mutex mutex_;  // Held while an operation is queued, so that operations have one order.
};

// Makes the following calls of a function run on one stream of a device: the current stream where
// the caller waits at once, else the communicator's own, behind the work of the current stream.
// Tensors made meanwhile belong to the chosen stream. Null: the host, and nothing happens.
class StreamScope {
 public:
  StreamScope(const DeviceCommunicator* communicator, bool waits);

 private:
  c10::OptionalStreamGuard guard_;
};

// The Work of an operation that was queued on a stream.
class DeviceWork final : public TuttiWork {
 public:
  DeviceWork(c10d::OpType type, const char* title, const std::vector<at::Tensor>& inputs,
             std::vector<at::Tensor> outputs, uint64_t sequence,
             std::shared_ptr<const DeviceCommunicator> communicator);

  // Says that the operation stands on the device's current stream; its tensors may be freed.
  void Queued();

  bool isCompleted() override;
  bool isSuccess() const override;
  // Makes the device's current stream wait. With a time-out the host waits too, for this time at
  // most.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  void blockCurrentStream() override { synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::shared_ptr<const DeviceCommunicator> communicator_;
  const std::vector<at::Tensor> inputs_;
  c10::Event done_;
  c10::Stream stream_;
  Mutex device_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> device_future_ TUTTI_GUARDED_BY(device_mutex_);
};

}  // namespace tutti_c10d
