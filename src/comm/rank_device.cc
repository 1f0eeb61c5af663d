#include "comm/rank_device.h"

#include "backend/cuda/device.h"
#include "backend/cuda/pinned_pool.h"
#include "comm/join.h"
#include "comm/process.h"
#include "window/device_flat_space.h"
#include "window/host_flat_space.h"

namespace tutti {
namespace {

// A rank on the host. Its kernels' waits end by a word in ordinary memory.
class HostDevice final : public RankDevice {
 public:
  explicit HostDevice(Process& process) : process_(process) {}

  int cuda_ordinal() const override { return -1; }
  Status Describe(PeerInfo&) const override { return Status::Ok(); }

  Result<std::unique_ptr<Operations>> Join(const JoinContext& context,
                                           JoinTimes& times) const override {
    if (context.rank() == 0) WarnOfEmptyLists(context.settings, context.lists);
    return JoinHosts(context, times);
  }

  Result<WindowMemory> MakeWindowMemory(const Bootstrap&, int team_size, int ranks_here,
                                        uint64_t stride) const override {
    return WindowMemory{
        MakeHostFlatSpace(process_.memory(), process_.fd_server(), team_size, ranks_here, stride),
        MakeHostRecordMemory()};
  }

  Result<std::shared_ptr<std::atomic<uint32_t>>> MakeKernelFlag() const override {
    return std::make_shared<std::atomic<uint32_t>>(0);
  }

 private:
  Process& process_;
};

// A CUDA device as a rank. The device is opened at the first use, in the making of a communicator:
// a failure of the driver becomes the communicator's error.
class GpuDevice final : public RankDevice {
 public:
  GpuDevice(Process& process, int ordinal) : process_(process), ordinal_(ordinal) {}

  int cuda_ordinal() const override { return ordinal_; }

  Status Describe(PeerInfo& self) const override {
    TUTTI_ASSIGN(const cuda::Device* const device, Open());
    self.device = device->pci_address();
    self.device_identity = device->identity();
    self.multiprocessors = device->multiprocessors();
    return Status::Ok();
  }

  Result<std::unique_ptr<Operations>> Join(const JoinContext& context, JoinTimes&) const override {
    TUTTI_ASSIGN(const cuda::Device* const device, Open());
    return JoinGpus(context, *device);
  }

  Result<WindowMemory> MakeWindowMemory(const Bootstrap& bootstrap, int, int,
                                        uint64_t stride) const override {
    TUTTI_ASSIGN(const cuda::Device* const device, Open());
    WindowMemory made;
    TUTTI_ASSIGN(made.space,
                 MakeDeviceFlatSpace(*device, process_.fd_server(), OfferKey(bootstrap), stride));
    made.records = MakeDeviceRecordMemory(*device);
    return made;
  }

  // The word lies in pinned memory, which goes back to the process's pool with the last pointer.
  Result<std::shared_ptr<std::atomic<uint32_t>>> MakeKernelFlag() const override {
    TUTTI_ASSIGN(const cuda::Device* const device, Open());
    TUTTI_ASSIGN(cuda::PinnedBlock block, device->pinned().Take(sizeof(std::atomic<uint32_t>)));
    auto* const word = new (block.data()) std::atomic<uint32_t>(0);
    const auto owner = std::make_shared<cuda::PinnedBlock>(std::move(block));
    return std::shared_ptr<std::atomic<uint32_t>>(owner, word);
  }

 private:
  Result<const cuda::Device*> Open() const { return process_.OpenDevice(ordinal_); }

  Process& process_;
  const int ordinal_;
};

}  // namespace

std::unique_ptr<RankDevice> MakeRankDevice(Process& process, int cuda_ordinal) {
  if (cuda_ordinal < 0) return std::make_unique<HostDevice>(process);
  return std::make_unique<GpuDevice>(process, cuda_ordinal);
}

}  // namespace tutti
