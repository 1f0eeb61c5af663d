#pragma once

// The operations of GPUs of one host that all reach one another's windows (windows.h). An operation
// is a kernel, queued on the caller's CUDA stream.
//
// Only Create waits for other ranks. A launch queues kernels; ranks meet inside them.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "config/settings.h"
#include "gpu/device_operations.h"
#include "gpu/queue.h"
#include "gpu/registry.h"
#include "gpu/windows.h"
#include "plan/mesh.h"

namespace tutti {

class GpuMesh final : public DeviceOperations {
 public:
  // Returns ok where the ranks are few enough and on one host; the same on all ranks.
  static Status CheckRanks(std::span<const PeerInfo> peers);
  // Makes a mesh with windows in `place`. All ranks call it. Fails when the ranks cannot talk, or
  // for reasons that have nothing to do with the place.
  static Result<TriedWindows<GpuMesh>> Create(const GpuPeers& peers, Watch& watch,
                                              const Settings& settings, WindowPlace place);

  bool MapsPeerMemory() const override { return args_.num_ranks == 1 || IsOnGpu(windows_.place()); }
  const void* Register(ReachedWindow window) override;
  Status Forget(const void* token) override;
  double PredictUs(const Task& task) const override;
  std::string Describe(const Task& task) const override;
  std::string_view TransportTo(int) const override { return "gpu"; }
  const MachineMap& machines() const override { return machines_; }
  uint64_t MemoryBytes() const override { return windows_.DeviceBytes() + PackBytes(); }
  uint64_t SuspendableBytes() const override;
  uint64_t PersistentBytes() const override {
    return MemoryBytes() + PinnedBytes() - SuspendableBytes();
  }
  Status CheckNothingWaits() override;

 private:
  GpuMesh(const GpuPeers& peers, Watch& watch);
  std::string DescribePath() const override;
  uint64_t PinnedBytes() const override { return windows_.PinnedBytes() + alone_.size(); }
  Status CheckCanGiveBack() const override { return windows_.CheckCanGiveBack(); }
  Status GiveBackWindows() override;
  Result<Agreement> TakeBackWindows(const GpuPeers& peers) override {
    return windows_.TakeBackMemory(peers);
  }
  std::vector<GpuWindows::Range> Counters() const;
  Status Prepare(const GpuPeers& peers, const Settings& settings, WindowPlace place);
  Status PrepareAlone();
  // Says what is wrong with the windows, and with LL128. The mesh can do without the latter.
  struct Probed {
    Status windows;
    Status ll128;
  };
  // Sends known data through the windows and looks at what arrives (mesh_probe.cc). `fault` is the
  // value of TUTTI_GPU_FAULT.
  Probed Probe(const GpuPeers& peers, std::string_view fault);
  struct ProbePlace;
  // Returns what is wrong with what arrived. Fails when not all of it arrives.
  struct Arrived {
    Status wrong;
  };
  Result<Arrived> ProbeProtocol(ProbePlace& place, const MeshChoice& choice, size_t bytes,
                                bool corrupt);
  Status ProbeProtocols(const GpuPeers& peers, std::string_view fault, Probed& probed);
  // Gives up LL128 on all ranks if it is wrong on one.
  Status AgreeOnLL128(const GpuPeers& peers, const Status& ll128);

  Status LaunchTasks(std::span<const IssuedTask> tasks) override TUTTI_REQUIRES(launch_mutex_);
  Status LaunchTask(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchCall(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchCollective(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  // `count` is that of elements, or of bytes where the operation moves bytes.
  Status LaunchChosen(const Task& task, const MeshChoice& choice, size_t count,
                      cuda::Stream stream);
  static cuda::LaunchShape ShapeOf(const MeshChoice& choice, const Task& task) {
    return {choice.blocks, choice.threads, choice.early, LaunchEventOf(task)};
  }
  void SetArgs(const Task& task, const MeshChoice& choice, size_t count,
               cuda::MeshArgs& args) const;
  Status LaunchAlone(const Task& task, cuda::Stream stream);
  // Launches an AllReduce of many buffers.
  Status LaunchScattered(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  // Launches an AllReduce through windows, also where its buffers are registered: ranks cut theirs
  // differently, and would not all find them so.
  Status LaunchOwn(const Task& task, cuda::Stream stream);
  // Launch the collectives that are made of others.
  Status LaunchReduceScatterV(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchAsMessages(const Task& task, cuda::Stream stream);
  Status LaunchBarrier(cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  // Returns a kernel's arguments, to which messages are added.
  cuda::MessageArgs NoMessages() const;
  // Launches an AlltoAll, Gather or Scatter pair by pair.
  Status LaunchExchange(const Task& task, cuda::Stream stream);
  // The registered buffers that hold what a task has others read or write (symmetric.cc).
  struct SharedBuffers {
    const GpuRegistry::Buffer* input = nullptr;
    const GpuRegistry::Buffer* output = nullptr;
    bool complete = false;
  };
  SharedBuffers FindShared(const Task& task) const TUTTI_REQUIRES(launch_mutex_);
  MeshChoice ChoiceFor(const Task& task, const SharedBuffers& shared) const;
  Algorithm AlgorithmFor(const Task& task) const override;
  Status LaunchSymmetric(const Task& task, const MeshChoice& choice, size_t count,
                         const SharedBuffers& shared, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // Launches all sends and receives of a group.
  Status LaunchMessages(std::span<const IssuedTask> tasks);
  // Returns the order in which this communicator has to combine the elements of the task.
  ReductionOrder OrderFor(const Task& task) const;

  MachineMap machines_;
  MeshContext context_;
  GpuWindows windows_;
  bool stuck_ = false;       // A kernel does not end, so that nothing that it uses may be freed.
  cuda::PinnedBlock alone_;  // The window of a rank that is alone.
  cuda::MeshArgs args_;      // The arguments that all operations have in common.
  cuda::MessageLayout messages_;
  std::byte* scratch_ = nullptr;  // It has kScratchBytes, at the end of the window.
  // OpSignature::registered of the call that is being launched.
  uint32_t registered_ TUTTI_GUARDED_BY(launch_mutex_) = 0;
  GpuRegistry registry_ TUTTI_GUARDED_BY(launch_mutex_);
};

}  // namespace tutti
