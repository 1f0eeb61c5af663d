#include "comm/gpu_gin.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "comm/communicator.h"
#include "comm/joint_call.h"
#include "window/flat_space.h"

namespace tutti {
namespace {

// The addresses reserved for a rank's part of the host's memory. A device communicator takes some
// MiB.
constexpr uint64_t kStride = uint64_t{64} << 30;
// A page of a rank holds its lock.
constexpr uint64_t kLockBytes = 4096;
constexpr double kFinishS = 60;
// The call that other ranks see as the place of a failure.
constexpr const char* kCall = "ncclDevCommCreate";
constexpr const char* kDoing = "in ncclDevCommCreate";

}  // namespace

// A proxy for its device communicator. The memory of the proxy is kept as long as other ranks may
// write there.
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

// Windows of the host's memory are a second symmetric memory beside the windows of the GPUs, with
// the same LSA teams.
GpuGin::GpuGin(Communicator& comm) : comm_(comm) {
  const LsaTeam& team = comm.symmetric().team();
  const PeerInfo& self = comm.peers()[static_cast<size_t>(comm.rank())];
  const auto ranks_here =
      std::count_if(comm.peers().begin(), comm.peers().end(),
                    [&](const PeerInfo& peer) { return SameProcess(peer, self); });
  Process& process = comm.process();
  memory_ = std::make_unique<SymmetricMemory>(SymmetricMemory::Parts{
      .bootstrap = &comm.bootstrap(),
      .peers = comm.peers(),
      .team = team,
      .space = MakeHostFlatSpace(process.memory(), process.fd_server(), team.size,
                                 static_cast<int>(ranks_here), kStride),
      .records = MakeHostRecordMemory(),
      .directory = &process.windows()});
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

// ---------------------------------------------------------------------------------------------------------------------
// The joint calls

// Takes a joint step. Returns the same result on all ranks: success where the step succeeded on
// all, else the failure of one rank, with its name.
Status GpuGin::Together(const Step& step) {
  std::atomic<bool> ended = false;
  Status mine;
  {
    const JointCall call(comm_, kDoing, ended);
    mine = step(call.ranks());
    if (!mine.ok()) mine = call.GiveUp(std::move(mine));
  }
  return comm_.AgreeInStep(kCall, mine);
}

// Makes the parts that all device communicators share.
Status GpuGin::Join() {
  if (comm_.symmetric().team().size < comm_.num_ranks()) TUTTI_TRY(Connect());
  Result<std::shared_ptr<const Window>> locks = MakeWindow(kLockBytes, 0);
  Status shared = locks.status();
  if (shared.ok()) {
    shared = Together([&](const JointRanks& ranks) { return Share(**locks, ranks.limits()); });
    if (!shared.ok()) Drop(**locks);
  }
  if (!shared.ok()) {
    remote_.reset();
    return shared;
  }
  locks_ = std::move(locks).value();
  return Status::Ok();
}

Status GpuGin::Connect() {
  const Operations::OneSidedNetwork network = comm_.operations().one_sided_network();
  RemoteWindows::Parts parts = {.ranks = {},
                                .team = comm_.symmetric().team(),
                                .loop = &comm_.process().proxy().loop(),
                                .network = network.net,
                                .device = network.device,
                                .groups = network.groups,
                                .watch = &comm_.watch(),
                                .attempt = attempts_++};
  Status connected = Together([&](const JointRanks& ranks) -> Status {
    parts.ranks = ranks;
    TUTTI_ASSIGN(remote_, RemoteWindows::Connect(parts));
    return Status::Ok();
  });
  if (!connected.ok()) remote_.reset();
  return connected;
}

// Registers memory of all ranks. Comes out alike on all of them.
Result<std::shared_ptr<const Window>> GpuGin::MakeWindow(uint64_t bytes, uint64_t alike) {
  const Watch::Step here(comm_.watch(), kDoing);
  SymmetricMemory::Request request;
  request.bytes = bytes;
  request.alike = alike;
  Result<SymmetricMemory::Outcome> outcome = memory_->Register(request, comm_.ranks());
  if (!outcome.ok()) return comm_.StopAfterStep(std::move(outcome).status());
  TUTTI_TRY(std::move(outcome->refusal));
  if (outcome->window == nullptr) return std::move(outcome->why_none);
  return std::move(outcome->window);
}

Status GpuGin::Share(const Window& window, const WaitLimits& limits) {
  if (!remote_) return Status::Ok();
  TUTTI_ASSIGN(Agreement shared, remote_->Share(window, /*holds_signals=*/true, limits));
  return std::move(shared.refusal);
}

void GpuGin::Drop(const Window& window) {
  if (remote_) remote_->Forget(window.handle);
  static_cast<void>(memory_->Deregister(window.handle).ok());
}

Result<std::unique_ptr<GinBackend>> GpuGin::MakeProxy(const GinPlan& plan, uint64_t digest) {
  return Make(
      plan, digest, [](GinDeviceProxy& proxy) { return proxy.Start(); }, [] {});
}

Result<GpuGin::ForStreams> GpuGin::MakeForStreams(const GinPlan& plan) {
  ForStreams made;
  const bool alone = comm_.symmetric().team().size == comm_.num_ranks();
  const auto prepare = [&](GinDeviceProxy& proxy) -> Status {
    TUTTI_ASSIGN(made.line, GinStreamLine::Create(proxy));
    return alone ? Status::Ok() : proxy.Start();
  };
  TUTTI_ASSIGN(made.proxy, Make(plan, 0, prepare, [&] { made.line.reset(); }));
  return made;
}

Result<std::unique_ptr<GinBackend>> GpuGin::Make(const GinPlan& plan, uint64_t digest,
                                                 const Prepare& prepare,
                                                 const std::function<void()>& undo) {
  FreeRetired();
  if (locks_ == nullptr) TUTTI_TRY(Join());
  // The messages between the proxies of two ranks need strong signals (gin/mail.h).
  if (remote_) TUTTI_TRY(remote_->CheckSignals(/*strong=*/true, plan.va_signals));
  const LsaTeam& team = comm_.symmetric().team();
  TUTTI_ASSIGN(std::shared_ptr<const Window> window,
               MakeWindow(GinHostLayout(plan, team).bytes, digest));
  std::unique_ptr<GinDeviceProxy> proxy;
  Status made = Together([&](const JointRanks& ranks) -> Status {
    TUTTI_TRY(Share(*window, ranks.limits()));
    TUTTI_ASSIGN(proxy, PrepareProxy(plan, window));
    return prepare(*proxy);
  });
  if (!made.ok()) {
    // No kernel runs on any rank yet, and no rank writes here.
    undo();
    proxy.reset();
    Drop(*window);
    return made;
  }
  return std::unique_ptr<GinBackend>(
      std::make_unique<Owned>(*this, std::move(proxy), std::move(window)));
}

Result<std::unique_ptr<GinDeviceProxy>> GpuGin::PrepareProxy(
    const GinPlan& plan, const std::shared_ptr<const Window>& window) const {
  TUTTI_ASSIGN(const cuda::Device* const device, comm_.device().OpenGpu());
  return GinDeviceProxy::Create({.rank = comm_.rank(),
                                 .plan = plan,
                                 .device = device,
                                 .symmetric = &comm_.symmetric(),
                                 .host = window,
                                 .locks = locks_,
                                 .remote = remote_.get(),
                                 .watch = &comm_.watch()});
}

void GpuGin::Retire(std::unique_ptr<GinDeviceProxy> proxy, std::shared_ptr<const Window> window) {
  {
    const MutexLock lock(mutex_);
    proxy->EndThread();
    retired_.push_back({std::move(proxy), std::move(window)});
  }
  FreeRetired();
}

// Frees memory that no other rank writes to any more.
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
