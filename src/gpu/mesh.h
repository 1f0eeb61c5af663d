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
  Result<Arrived> ProbeProtocol(ProbePlace& place, const Plan& plan, size_t bytes, bool corrupt);
  Status ProbeProtocols(const GpuPeers& peers, std::string_view fault, Probed& probed);
  void SetLL128(size_t slot_bytes);
  // Gives up LL128 on all ranks if it is wrong on one.
  Status AgreeOnLL128(const GpuPeers& peers, const Status& ll128);

  Status LaunchPlanned(const CollectiveTask& task, const Plan& plan, cuda::Stream stream) override
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchAlone(const CollectiveTask& task, cuda::Stream stream) override
      TUTTI_REQUIRES(launch_mutex_);
  Status LaunchMessages(std::span<const MessageTask> messages, const CallWishes& wishes,
                        cuda::Stream stream, cuda::Event begun) override
      TUTTI_REQUIRES(launch_mutex_);
  Buffers BuffersOf(const CollectiveTask& task) const override TUTTI_REQUIRES(launch_mutex_) {
    return FindShared(task).complete ? Buffers::kRegistered : Buffers::kOwn;
  }
  std::byte* scratch() const override { return scratch_; }
  std::string DescribePlan(const CollectiveTask&, const Plan& plan) const override {
    return DescribeMesh(plan);
  }
  // Launches a kernel of the mesh, whatever the registered buffers.
  Status LaunchKernel(const CollectiveTask& task, const Plan& plan, cuda::Stream stream);
  static cuda::LaunchShape ShapeOf(const Plan& plan, const CollectiveTask& task) {
    return {plan.channels, plan.threads, plan.early, LaunchEventOf(task)};
  }
  void SetArgs(const CollectiveTask& task, const Plan& plan, cuda::MeshArgs& args) const;
  // Returns a kernel's arguments, to which messages are added.
  cuda::MessageArgs NoMessages() const;
  uint32_t MostEarly() const {
    const MeshReach& mesh = planner_.context().mesh;
    return MostEarlyBlocks(mesh, mesh.max_blocks);
  }
  // Launches an AlltoAll, Gather or Scatter pair by pair.
  Status LaunchExchange(const CollectiveTask& task, cuda::Stream stream);
  // The registered buffers that hold what a task has others read or write (symmetric.cc).
  struct SharedBuffers {
    const GpuRegistry::Buffer* input = nullptr;
    const GpuRegistry::Buffer* output = nullptr;
    bool complete = false;
  };
  SharedBuffers FindShared(const CollectiveTask& task) const TUTTI_REQUIRES(launch_mutex_);
  Status LaunchSymmetric(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);

  MachineMap machines_;
  GpuWindows windows_;
  bool stuck_ = false;       // A kernel does not end, so that nothing that it uses may be freed.
  cuda::PinnedBlock alone_;  // The window of a rank that is alone.
  cuda::MeshArgs args_;      // The arguments that all operations have in common.
  cuda::MessageLayout messages_;
  std::byte* scratch_ = nullptr;  // It has kScratchBytes, at the end of the window.
  GpuRegistry registry_ TUTTI_GUARDED_BY(launch_mutex_);
};

}  // namespace tutti
