#pragma once

// The GPUs of a communicator: their windows, as this rank maps them, and the launch of operations on
// the caller's CUDA stream. Stands where connections, stages and the executor do for host ranks.
//
// Nothing here waits for another rank but Create. A launch only queues a kernel; ranks meet inside
// the kernels. Operations of a communicator run one after another, in the order of their launches,
// also when they are on different streams: a launch on another stream than the last waits for that
// one by an event.
//
// Launches come from one thread at a time; Abort from any.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/memory.h"
#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "comm/peer_info.h"
#include "comm/task.h"
#include "config/settings.h"
#include "plan/mesh.h"
#include "sys/fd_server.h"

namespace tutti {

// A task and the CUDA stream (a cudaStream_t) that it was issued on.
struct DeviceTask {
  Task task;
  void* stream = nullptr;
};

class GpuMesh {
 public:
  struct Options {
    const cuda::Device* device = nullptr;
    Bootstrap* bootstrap = nullptr;
    FdServer* fd_server = nullptr;
    std::span<const PeerInfo> peers;
    const Settings* settings = nullptr;
    FdKey key = {};
    Deadline deadline = Deadline::Never();
    const std::atomic<bool>* abort_flag = nullptr;
  };
  // All ranks call it. Fails on every rank alike where GPUs cannot reach one another.
  static Result<std::unique_ptr<GpuMesh>> Create(const Options& options);
  ~GpuMesh();

  // Queues the tasks of one group: collectives in order, then all sends and receives together.
  Status Launch(std::span<const DeviceTask> tasks);
  // Ends the waits of all kernels, now and later.
  void Abort();
  // Until the GPU has done all that was queued on it.
  Status Drain();

  const cuda::Device& device() const { return *device_; }
  uint64_t MemoryBytes() const { return memory_.size(); }
  std::string Describe(const Task& task) const;

 private:
  GpuMesh() = default;
  Status ShareWindow(const Options& options);
  Status CheckReach(const Options& options) const;
  Status LaunchCollective(const Task& task, cuda::Stream stream);
  // All sends and receives of a group.
  Status LaunchMessages(std::span<const DeviceTask> tasks);
  Status CopyOwnMessages(std::span<const DeviceTask> tasks, cuda::Stream stream);
  Status LaunchAlone(const Task& task, cuda::Stream stream);
  Status CheckTask(const Task& task) const;
  Status CheckPointer(const void* pointer, const char* what) const;
  Status OrderBehindLast(cuda::Stream stream);
  cuda::ReduceArgs ReduceArgsOf(const Task& task) const;

  const cuda::Device* device_ = nullptr;
  bool check_pointers_ = false;
  MeshContext context_;
  cuda::MappedMemory memory_;               // this rank's window
  std::vector<cuda::MappedMemory> mapped_;  // of the others, by rank
  uint32_t* abort_word_ = nullptr;          // pinned
  cuda::MeshArgs args_;                     // what all operations have in common
  cuda::MessageLayout messages_;
  std::mutex launch_mutex_;  // guards what follows
  bool launched_ = false;
  cuda::Stream last_stream_ = nullptr;
  cuda::Event order_ = nullptr;
};

}  // namespace tutti
