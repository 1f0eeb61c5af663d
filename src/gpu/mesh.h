#pragma once

// Ranks that are GPUs of one host and all reach one another's windows (gpu_windows.h): operations
// are kernels, queued on the caller's CUDA stream. Stands where connections, stages and the
// executor do for host ranks.
//
// Nothing here waits for another rank but Create. A launch only queues kernels; ranks meet inside
// them.

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "base/status.h"
#include "config/settings.h"
#include "gpu/gpu_operations.h"
#include "gpu/queue.h"
#include "gpu/registry.h"
#include "gpu/windows.h"
#include "plan/mesh.h"

namespace tutti {

class GpuMesh final : public GpuOperations {
 public:
  // Whether the ranks are few enough, on one host; the same on all ranks.
  static Status CheckRanks(std::span<const PeerInfo> peers);
  // All ranks call it. Null, and why in `*verdict` (the same on every rank), where this place does
  // not serve: it could not be mapped, or what was written through it did not arrive. Fails when
  // the ranks cannot talk, or for reasons that have nothing to do with the place.
  static Result<std::unique_ptr<GpuMesh>> Create(const GpuPeers& peers, const Settings& settings,
                                                 WindowPlace place, Status* verdict);

  Status Launch(std::span<const DeviceTask> tasks, bool* begun) override;
  void Abort() override { queue_->Abort(); }
  Status Drain() override { return queue_->Drain(); }
  QueueState State() const override { return queue_->State(); }
  Result<const void*> Register(const GpuPeers& peers, std::span<std::byte> buffer,
                               Status* verdict) override;
  Status Forget(const void* registration) override;
  uint64_t DeviceBytes() const override { return windows_.DeviceBytes() + pack_.size(); }
  uint64_t PinnedBytes() const override { return windows_.PinnedBytes() + alone_.size(); }
  double PredictUs(const Task& task) const override;
  std::string DescribeTransport() const override;
  std::string Describe(const Task& task) const override;

 private:
  GpuMesh() = default;
  Status Prepare(const GpuPeers& peers, const Settings& settings, WindowPlace place);
  Status PrepareAlone();
  // Sends known data through the windows and looks at what arrives; gpu_mesh_probe.cc. `*ll128`:
  // what is wrong with LL128, which can be done without. `fault`: TUTTI_GPU_FAULT.
  Status Probe(const GpuPeers& peers, std::string_view fault, Status* ll128);
  struct ProbePlace;
  Status ProbeForm(ProbePlace& place, const MeshChoice& choice, size_t bytes, bool corrupt,
                   Status* wrong);
  // Gives up LL128 on all ranks if they are wrong on one.
  Status AgreeOnLL128(const GpuPeers& peers, const Status& ll128);

  Status LaunchTasks(std::span<const DeviceTask> tasks);
  Status LaunchTask(const Task& task, cuda::Stream stream);
  Status LaunchCall(const Task& task, cuda::Stream stream);
  Status LaunchCollective(const Task& task, cuda::Stream stream);
  // `count`: of elements, or of bytes where the operation moves bytes.
  Status LaunchChosen(const Task& task, const MeshChoice& choice, size_t count,
                      cuda::Stream stream);
  static cuda::LaunchShape ShapeOf(const MeshChoice& choice) {
    return {choice.blocks, choice.threads, choice.early};
  }
  void SetArgs(const Task& task, const MeshChoice& choice, size_t count,
               cuda::MeshArgs& args) const;
  Status LaunchAlone(const Task& task, cuda::Stream stream);
  // Of many buffers; gpu_scattered.cc.
  Status LaunchScattered(const Task& task, cuda::Stream stream);
  Status LaunchOwn(const Task& task, cuda::Stream stream);
  // The collectives that are made of others.
  Status LaunchReduceScatterV(const Task& task, cuda::Stream stream);
  Status LaunchAsMessages(const Task& task, cuda::Stream stream);
  Status LaunchBarrier(cuda::Stream stream);
  // A kernel's arguments, to which messages are added.
  cuda::MessageArgs NoMessages() const;
  // AlltoAll, Gather or Scatter, pair by pair.
  Status LaunchExchange(const Task& task, cuda::Stream stream);
  // Operations between registered buffers; gpu_symmetric.cc.
  // Those that hold what a task has others read or write.
  struct SharedBuffers {
    const GpuRegistry::Buffer* input = nullptr;
    const GpuRegistry::Buffer* output = nullptr;
    bool complete = false;
  };
  SharedBuffers FindShared(const Task& task) const;
  Status LaunchSymmetric(const Task& task, const MeshChoice& choice, size_t count,
                         const SharedBuffers& shared, cuda::Stream stream);
  // All sends and receives of a group.
  Status LaunchMessages(std::span<const DeviceTask> tasks);
  // In which order this communicator has to combine the elements of the task.
  ReductionOrder OrderFor(const Task& task) const;
  cuda::ReduceArgs ReduceArgsOf(const Task& task) const;

  const cuda::Device& device() const { return queue_->device(); }

  MeshContext context_;
  std::unique_ptr<GpuQueue> queue_;
  GpuWindows windows_;
  bool stuck_ = false;       // a kernel does not end: nothing that it uses may go
  cuda::PinnedBlock alone_;  // the window of a rank that has no others
  cuda::MeshArgs args_;      // what all operations have in common
  cuda::MessageLayout messages_;
  std::byte* scratch_ = nullptr;  // of kScratchBytes, at the end of the window
  std::mutex launch_mutex_;       // guards the queue, and what follows
  cuda::MappedMemory pack_;       // for many buffers in one; when it is needed
  uint32_t registered_ = 0;       // see OpSignature; of the call that is being launched
  GpuRegistry registry_;
  std::vector<std::unique_ptr<GpuRegistry::Buffer>> still_mapped_;  // forgotten while in use
};

}  // namespace tutti
