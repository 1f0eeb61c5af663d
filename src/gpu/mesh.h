#pragma once

// Ranks that are GPUs of one host and all reach one another's windows (windows.h): operations
// are kernels, queued on the caller's CUDA stream.
//
// Nothing here waits for another rank but Create and Register. A launch only queues kernels; ranks
// meet inside them.

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
  // Whether the ranks are few enough, on one host; the same on all ranks.
  static Status CheckRanks(std::span<const PeerInfo> peers);
  // A mesh, or null, and why this place for windows does not serve: it could not be mapped, or what
  // was written through it did not arrive. The same on every rank.
  struct Outcome {
    std::unique_ptr<GpuMesh> mesh;
    Status refusal;
  };
  // All ranks call it. Fails when the ranks cannot talk, or for reasons that have nothing to do
  // with the place.
  static Result<Outcome> Create(const GpuPeers& peers, Watch& watch, const Settings& settings,
                                WindowPlace place);

  Result<Registration> Register(std::span<std::byte> buffer, Deadline deadline,
                                const std::atomic<bool>* abort_flag) override;
  Status Forget(const void* token) override;
  double PredictUs(const Task& task) const override;
  std::string Describe(const Task& task) const override;
  std::string_view TransportTo(int) const override { return "gpu"; }
  const MachineMap& machines() const override { return machines_; }
  uint64_t MemoryBytes() const override { return windows_.DeviceBytes() + pack_bytes_; }

 private:
  GpuMesh(const GpuPeers& peers, Watch& watch);
  std::string DescribePath() const override;
  uint64_t PinnedBytes() const override { return windows_.PinnedBytes() + alone_.size(); }
  Status Prepare(const GpuPeers& peers, const Settings& settings, WindowPlace place);
  Status PrepareAlone();
  // What is wrong with the windows, and with LL128, which can be done without.
  struct Probed {
    Status windows;
    Status ll128;
  };
  // Sends known data through the windows and looks at what arrives; mesh_probe.cc. `fault`:
  // TUTTI_GPU_FAULT.
  Probed Probe(const GpuPeers& peers, std::string_view fault);
  struct ProbePlace;
  // Returns what is wrong with what arrived. Fails when not all of it arrives.
  struct Arrived {
    Status wrong;
  };
  Result<Arrived> ProbeForm(ProbePlace& place, const MeshChoice& choice, size_t bytes,
                            bool corrupt);
  Status ProbeForms(const GpuPeers& peers, std::string_view fault, Probed& probed);
  // Gives up LL128 on all ranks if it is wrong on one.
  Status AgreeOnLL128(const GpuPeers& peers, const Status& ll128);

  Status LaunchTasks(std::span<const IssuedTask> tasks) override TUTTI_REQUIRES(launch_mutex_);
  Status LaunchTask(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchCall(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchCollective(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  // `count`: of elements, or of bytes where the operation moves bytes.
  Status LaunchChosen(const Task& task, const MeshChoice& choice, size_t count,
                      cuda::Stream stream);
  static cuda::LaunchShape ShapeOf(const MeshChoice& choice) {
    return {choice.blocks, choice.threads, choice.early};
  }
  void SetArgs(const Task& task, const MeshChoice& choice, size_t count,
               cuda::MeshArgs& args) const;
  Status LaunchAlone(const Task& task, cuda::Stream stream);
  // Of many buffers; scattered.cc.
  Status LaunchScattered(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchOwn(const Task& task, cuda::Stream stream);
  // The collectives that are made of others.
  Status LaunchReduceScatterV(const Task& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchAsMessages(const Task& task, cuda::Stream stream);
  Status LaunchBarrier(cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  // A kernel's arguments, to which messages are added.
  cuda::MessageArgs NoMessages() const;
  // AlltoAll, Gather or Scatter, pair by pair.
  Status LaunchExchange(const Task& task, cuda::Stream stream);
  // Operations between registered buffers; symmetric.cc.
  // Those that hold what a task has others read or write.
  struct SharedBuffers {
    const GpuRegistry::Buffer* input = nullptr;
    const GpuRegistry::Buffer* output = nullptr;
    bool complete = false;
  };
  SharedBuffers FindShared(const Task& task) const TUTTI_REQUIRES(launch_mutex_);
  Status LaunchSymmetric(const Task& task, const MeshChoice& choice, size_t count,
                         const SharedBuffers& shared, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // All sends and receives of a group.
  Status LaunchMessages(std::span<const IssuedTask> tasks);
  // In which order this communicator has to combine the elements of the task.
  ReductionOrder OrderFor(const Task& task) const;
  cuda::ReduceArgs ReduceArgsOf(const Task& task) const;

  MachineMap machines_;
  MeshContext context_;
  GpuWindows windows_;
  bool stuck_ = false;       // a kernel does not end: nothing that it uses may go
  cuda::PinnedBlock alone_;  // the window of a rank that has no others
  cuda::MeshArgs args_;      // what all operations have in common
  cuda::MessageLayout messages_;
  std::byte* scratch_ = nullptr;  // of kScratchBytes, at the end of the window
  // For many buffers in one, allocated when it is needed; and its size, for any thread.
  cuda::MappedMemory pack_ TUTTI_GUARDED_BY(launch_mutex_);
  std::atomic<size_t> pack_bytes_ = 0;
  // See OpSignature; of the call that is being launched.
  uint32_t registered_ TUTTI_GUARDED_BY(launch_mutex_) = 0;
  GpuRegistry registry_ TUTTI_GUARDED_BY(launch_mutex_);
  // Buffers that were forgotten while they were in use.
  std::vector<std::unique_ptr<GpuRegistry::Buffer>> still_mapped_ TUTTI_GUARDED_BY(launch_mutex_);
};

}  // namespace tutti
