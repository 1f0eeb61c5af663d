#pragma once

// GpuMesh has the operations of GPUs of one host that all reach one another's windows
// (gpu/windows.h). An operation is a kernel, queued on the caller's CUDA stream.
//
// Only Create waits for other ranks. A launch only queues kernels, and ranks meet inside the
// kernels.

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
  // Returns ok where the ranks are few enough and on one host. The answer is the same on all ranks.
  static Status CheckRanks(std::span<const PeerInfo> peers);
  // Makes a mesh with windows in `place`. All ranks call Create. A refusal is about the place; an
  // error means that the ranks cannot talk, or has a reason unrelated to the place.
  static Result<TriedWindows<GpuMesh>> Create(const GpuPeers& peers, Watch& watch,
                                              const Settings& settings, WindowPlace place);

  bool MapsPeerMemory() const override { return args_.num_ranks == 1 || IsOnGpu(windows_.place()); }
  const void* Register(ReachedWindow window) override;
  Status Forget(const void* token) override;
  std::string_view TransportTo(int) const override { return "gpu"; }
  uint64_t MemoryBytes() const override { return windows_.DeviceBytes() + PackBytes(); }
  uint64_t SuspendableBytes() const override;
  uint64_t PersistentBytes() const override {
    return MemoryBytes() + PinnedBytes() - SuspendableBytes();
  }
  Status CheckNothingWaits() override;

 private:
  GpuMesh(const GpuPeers& peers, Watch& watch) : DeviceOperations(peers, watch) {}
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
  // Tells the fault of the windows and the fault of LL128. The mesh can do without LL128.
  struct Probed {
    Status windows;
    Status ll128;
  };
  // Sends known data through the windows and compares the arrived data (mesh_probe.cc). `fault` is
  // the value of TUTTI_GPU_FAULT.
  Probed Probe(const GpuPeers& peers, std::string_view fault);
  struct ProbePlace;
  // Tells the first fault in the arrived data. ProbeProtocol fails when data is missing.
  struct Arrived {
    Status wrong;
  };
  Result<Arrived> ProbeProtocol(ProbePlace& place, const Plan& plan, size_t bytes, bool corrupt);
  Status ProbeProtocols(const GpuPeers& peers, std::string_view fault, Probed& probed);
  void SetLL128(size_t slot_bytes);
  // Gives up LL128 on all ranks if LL128 fails on any rank.
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
  std::string DescribePlan(const CollectiveTask& task, const Plan& plan) const override {
    const bool messages = plan.row->id == MeshAlgorithm::kMessages;
    return (messages ? std::string(Name(task.collective)) + ": " : std::string()) +
           DescribeMesh(plan);
  }
  // Launches a kernel of the mesh over unregistered buffers.
  Status LaunchKernel(const CollectiveTask& task, const Plan& plan, cuda::Stream stream);
  static cuda::LaunchShape ShapeOf(const Plan& plan, const CollectiveTask& task) {
    return {plan.channels, plan.threads, plan.early, LaunchEventOf(task)};
  }
  void SetArgs(const CollectiveTask& task, const Plan& plan, cuda::MeshArgs& args) const;
  // Returns the arguments of a message kernel before messages are added.
  cuda::MessageArgs NoMessages() const;
  uint32_t MostEarly() const {
    const MeshReach& mesh = planner_.context().mesh;
    return MostEarlyBlocks(mesh, mesh.max_blocks);
  }
  // Launches an AlltoAll, Gather or Scatter pair by pair.
  Status LaunchExchange(const CollectiveTask& task, cuda::Stream stream);
  // Holds the registered buffers with the data of a task that other ranks read or write
  // (symmetric.cc).
  struct SharedBuffers {
    const GpuRegistry::Buffer* input = nullptr;
    const GpuRegistry::Buffer* output = nullptr;
    bool complete = false;
  };
  SharedBuffers FindShared(const CollectiveTask& task) const TUTTI_REQUIRES(launch_mutex_);
  Status LaunchSymmetric(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);

  GpuWindows windows_;
  bool stuck_ = false;  // A kernel does not end, and nothing that the kernel uses may be freed.
  cuda::PinnedBlock alone_;  // The window of a rank without other ranks.
  cuda::MeshArgs args_;      // The arguments that all operations have in common.
  cuda::MessageLayout messages_;
  std::byte* scratch_ = nullptr;  // kScratchBytes of memory at the end of the window.
  GpuRegistry registry_ TUTTI_GUARDED_BY(launch_mutex_);
};

}  // namespace tutti
