#include "comm/rank_device.h"

#include "backend/cuda/device.h"
#include "backend/cuda/pinned_pool.h"
#include "comm/communicator.h"
#include "comm/join.h"
#include "comm/process.h"
#include "gin/proxy.h"
#include "window/flat_space.h"

namespace tutti {
namespace {

// A rank on the host. Ordinary memory holds the word that ends the waits of its kernels.
class HostDevice final : public RankDevice {
 public:
  explicit HostDevice(Process& process) : process_(process) {}

  int cuda_ordinal() const override { return -1; }
  Result<const cuda::Device*> OpenGpu() const override { return nullptr; }
  Manner manner() const override { return {}; }
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

  Result<std::unique_ptr<GinBackend>> MakeGinProxy(
      Communicator& comm, const ResourcePlan& plan,
      const std::shared_ptr<const Window>& window) const override {
    Result<std::unique_ptr<GinProxy>> proxy = MakeProxy(comm, plan.gin, window);
    TUTTI_TRY(comm.AgreeInStep("ncclDevCommCreate", proxy.status()));
    return std::unique_ptr<GinBackend>(std::move(proxy).value());
  }

  Result<std::shared_ptr<std::atomic<uint32_t>>> MakeKernelFlag() const override {
    return std::make_shared<std::atomic<uint32_t>>(0);
  }

 private:
  static Result<std::unique_ptr<GinProxy>> MakeProxy(Communicator& comm, const GinPlan& plan,
                                                     const std::shared_ptr<const Window>& window) {
    // The one-sided calls were made with the window, or before.
    TUTTI_ASSIGN(OneSided* const one_sided, comm.one_sided());
    if (const RemoteWindows* const remote = one_sided->remote())
      TUTTI_TRY(remote->CheckSignals(plan.strong, plan.va_signals));
    return GinProxy::Create({.rank = comm.rank(),
                             .plan = plan,
                             .resource = window,
                             .symmetric = &comm.symmetric(),
                             .remote = one_sided->remote(),
                             .loop = &comm.process().proxy().loop(),
                             .watch = &comm.watch()});
  }

  Process& process_;
};

// A rank on a CUDA device. The device is opened at the first use, because the communicator reports
// a failure of the driver as an error of its own.
class GpuDevice final : public RankDevice {
 public:
  GpuDevice(Process& process, int ordinal) : process_(process), ordinal_(ordinal) {}

  int cuda_ordinal() const override { return ordinal_; }
  Result<const cuda::Device*> OpenGpu() const override { return process_.OpenDevice(ordinal_); }
  Manner manner() const override {
    return {.one_sided_on_streams = true, .knows_old_gin = true, .proxy_for_cards = true};
  }

  Status Describe(PeerInfo& self) const override {
    TUTTI_ASSIGN(const cuda::Device* const device, OpenGpu());
    self.device = device->pci_address();
    self.device_identity = device->identity();
    self.multiprocessors = device->multiprocessors();
    return Status::Ok();
  }

  Result<std::unique_ptr<Operations>> Join(const JoinContext& context, JoinTimes&) const override {
    TUTTI_ASSIGN(const cuda::Device* const device, OpenGpu());
    return JoinGpus(context, *device);
  }

  Result<WindowMemory> MakeWindowMemory(const Bootstrap& bootstrap, int, int,
                                        uint64_t stride) const override {
    TUTTI_ASSIGN(const cuda::Device* const device, OpenGpu());
    WindowMemory made;
    TUTTI_ASSIGN(made.space,
                 MakeDeviceFlatSpace(*device, process_.fd_server(), OfferKey(bootstrap), stride));
    made.records = MakeDeviceRecordMemory(*device);
    return made;
  }

  Result<std::unique_ptr<GinBackend>> MakeGinProxy(
      Communicator& comm, const ResourcePlan& plan,
      const std::shared_ptr<const Window>&) const override {
    return comm.device_communicators().gpu_gin().MakeProxy(plan.gin, plan.digest);
  }

  // The word lies in pinned memory, which goes back to the process's pool with the last pointer.
  Result<std::shared_ptr<std::atomic<uint32_t>>> MakeKernelFlag() const override {
    TUTTI_ASSIGN(const cuda::Device* const device, OpenGpu());
    TUTTI_ASSIGN(cuda::PinnedBlock block, device->pinned().Take(sizeof(std::atomic<uint32_t>)));
    auto* const word = new (block.data()) std::atomic<uint32_t>(0);
    const auto owner = std::make_shared<cuda::PinnedBlock>(std::move(block));
    return std::shared_ptr<std::atomic<uint32_t>>(owner, word);
  }

 private:
  Process& process_;
  const int ordinal_;
};

}  // namespace

std::unique_ptr<RankDevice> MakeRankDevice(Process& process, int cuda_ordinal) {
  if (cuda_ordinal < 0) return std::make_unique<HostDevice>(process);
  return std::make_unique<GpuDevice>(process, cuda_ordinal);
}

}  // namespace tutti
