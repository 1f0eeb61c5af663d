#include "comm/gpu_gin.h"

#include <algorithm>
#include <utility>

#include "comm/communicator.h"
#include "window/host_flat_space.h"

namespace tutti {
namespace {

// The addresses that a rank's part of the host's memory has. A device communicator takes some MiB.
constexpr uint64_t kStride = uint64_t{64} << 30;
// A page of a rank holds its lock.
constexpr uint64_t kLockBytes = 4096;
constexpr double kFinishS = 60;

}  // namespace

// A proxy as its device communicator has it. What is left of it at the end is kept as long as
// other ranks may write there.
class GpuGin::Owned final : public GinBackend {
 public:
  Owned(GpuGin& gin, std::unique_ptr<GinDeviceProxy> proxy, std::shared_ptr<const Window> window)
      : gin_(gin), proxy_(std::move(proxy)), window_(std::move(window)) {}
  ~Owned() override { gin_.Retire(std::move(proxy_), std::move(window_)); }

  void* handle() const override { return proxy_->handle(); }
  Status Finish(Deadline deadline) override { return proxy_->Finish(deadline); }

 private:
  GpuGin& gin_;
  std::unique_ptr<GinDeviceProxy> proxy_;
  std::shared_ptr<const Window> window_;
};

Result<std::unique_ptr<GpuGin>> GpuGin::Create(Communicator& comm) {
  std::unique_ptr<GpuGin> gin(new GpuGin(comm));
  const LsaTeam& team = comm.symmetric().team();
  const PeerInfo& self = comm.peers()[static_cast<size_t>(comm.rank())];
  const auto ranks_here =
      std::count_if(comm.peers().begin(), comm.peers().end(),
                    [&](const PeerInfo& peer) { return SameProcess(peer, self); });
  Process& process = comm.process();
  gin->memory_ = std::make_unique<SymmetricMemory>(SymmetricMemory::Parts{
      .bootstrap = &comm.bootstrap(),
      .peers = comm.peers(),
      .team = team,
      .space = MakeHostFlatSpace(process.memory(), process.fd_server(), team.size,
                                 static_cast<int>(ranks_here), kStride),
      .records = MakeHostRecordMemory(),
      .directory = &process.windows()});
  if (team.size < comm.num_ranks()) {
    const Operations::OneSidedNetwork network = comm.operations().one_sided_network();
    TUTTI_ASSIGN(gin->remote_, RemoteWindows::Connect({.bootstrap = &comm.bootstrap(),
                                                       .peers = comm.peers(),
                                                       .team = team,
                                                       .loop = &process.proxy().loop(),
                                                       .network = network.net,
                                                       .device = network.device,
                                                       .watch = &comm.watch()},
                                                      comm.InitDeadline()));
  }
  TUTTI_ASSIGN(gin->locks_, gin->MakeWindow(kLockBytes, 0));
  return gin;
}

GpuGin::~GpuGin() {
  if (remote_ && !comm_.watch().stopped()) remote_->Finish(Deadline::AfterSeconds(kFinishS));
  const MutexLock lock(mutex_);
  for (Retired& retired : retired_) {
    retired.proxy.reset();
    Drop(*retired.window);
  }
  if (locks_) Drop(*locks_);
}

Result<std::shared_ptr<const Window>> GpuGin::MakeWindow(uint64_t bytes, uint64_t alike) {
  SymmetricMemory::Request request;
  request.bytes = bytes;
  request.alike = alike;
  const Deadline deadline = comm_.InitDeadline();
  TUTTI_ASSIGN(SymmetricMemory::Outcome outcome,
               memory_->Register(request, deadline, &comm_.watch().stop_flag()));
  TUTTI_TRY(std::move(outcome.refusal));
  if (outcome.window == nullptr) return std::move(outcome.why_none);
  if (remote_) TUTTI_TRY(remote_->Share(*outcome.window, deadline));
  return std::move(outcome.window);
}

void GpuGin::Drop(const Window& window) {
  if (remote_) remote_->Forget(window.handle);
  static_cast<void>(memory_->Deregister(window.handle).ok());
}

Result<std::unique_ptr<GinBackend>> GpuGin::MakeProxy(const GinPlan& plan, uint64_t digest) {
  FreeRetired();
  const LsaTeam& team = comm_.symmetric().team();
  TUTTI_ASSIGN(std::shared_ptr<const Window> window,
               MakeWindow(GinHostLayout(plan, team).bytes, digest));
  Result<std::unique_ptr<GinDeviceProxy>> proxy = StartProxy(plan, window);
  if (!proxy.ok()) {
    Drop(*window);
    return std::move(proxy).status();
  }
  return std::unique_ptr<GinBackend>(
      std::make_unique<Owned>(*this, std::move(proxy).value(), std::move(window)));
}

Result<std::unique_ptr<GinDeviceProxy>> GpuGin::StartProxy(
    const GinPlan& plan, const std::shared_ptr<const Window>& window) const {
  TUTTI_ASSIGN(const cuda::Device* const device,
               comm_.process().OpenDevice(comm_.device().cuda_ordinal()));
  TUTTI_ASSIGN(std::unique_ptr<GinDeviceProxy> proxy,
               GinDeviceProxy::Create({.rank = comm_.rank(),
                                       .plan = plan,
                                       .device = device,
                                       .symmetric = &comm_.symmetric(),
                                       .host = window,
                                       .locks = locks_,
                                       .remote = remote_.get(),
                                       .watch = &comm_.watch()}));
  TUTTI_TRY(proxy->Start());
  return proxy;
}

void GpuGin::Retire(std::unique_ptr<GinDeviceProxy> proxy, std::shared_ptr<const Window> window) {
  {
    const MutexLock lock(mutex_);
    retired_.push_back({std::move(proxy), std::move(window)});
  }
  FreeRetired();
}

// Frees what no other rank writes to any more.
void GpuGin::FreeRetired() {
  const MutexLock lock(mutex_);
  std::erase_if(retired_, [this](Retired& retired) {
    if (!retired.proxy->IsForgotten()) return false;
    retired.proxy.reset();
    Drop(*retired.window);
    return true;
  });
}

}  // namespace tutti
