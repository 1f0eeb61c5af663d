#include "comm/device_communicators.h"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/log.h"
#include "comm/communicator.h"
#include "comm/direct_gin.h"
#include "devcomm/record.h"

namespace tutti {
namespace {

// Returns the requirements that all ranks must ask for alike, for an error about a difference.
std::string TextOfRequirements(const ncclDevCommRequirements_t& asked) {
  return fmt::format(
      "lsaBarrierCount {},barrierCount {},railGinBarrierCount {},worldGinBarrierCount {},"
      "ginConnectionType {},ginForceEnable {},ginContextCount {},ginSignalCount {},"
      "ginCounterCount {},ginQueueDepth {}",
      asked.lsaBarrierCount, asked.barrierCount, asked.railGinBarrierCount,
      asked.worldGinBarrierCount, static_cast<int>(asked.ginConnectionType), asked.ginForceEnable,
      asked.ginContextCount, asked.ginSignalCount, asked.ginCounterCount, asked.ginQueueDepth);
}

}  // namespace

DeviceCommunicators::DeviceCommunicators(Communicator& comm) : comm_(comm) {}
DeviceCommunicators::~DeviceCommunicators() = default;

// Returns the layout of the resource window, or the reason why this rank refuses. Create takes a
// refusal into the exchange instead of returning at once, and all ranks refuse.
Result<ResourcePlan> DeviceCommunicators::Plan(
    const Result<ncclDevCommRequirements_t>& requirements) const {
  if (!requirements.ok()) return requirements.status();
  if (!comm_.symmetric().has_flat_space())
    return InvalidUsage("kernels of {} do not reach the memory of other ranks",
                        comm_.operations().RankKind());
  const bool direct = WantsDirect();
  return PlanResources(
      requirements.value(),
      {.num_ranks = comm_.num_ranks(),
       .lsa_size = comm_.symmetric().team().size,
       .has_gin = direct || comm_.CanDoGin(),
       .has_old_gin = !direct && comm_.device().manner().knows_old_gin && comm_.CanDoGin(),
       .usual_depth = static_cast<uint32_t>(direct ? comm_.settings().gin_queue_depth
                                                   : comm_.settings().gin_proxy_queue_size)});
}

// Makes the proxies or the cards' backends of all ranks. If a rank cannot make its own, no rank
// keeps its own, nor the window.
Result<std::unique_ptr<GinBackend>> DeviceCommunicators::MakeProxies(
    const ResourcePlan& whole, const std::shared_ptr<const Window>& window) {
  if (const std::string why = WhyProxy(); !why.empty())
    TUTTI_INFO(kLogNet, "kernels put over the network by the proxy: {}", why);
  Result<std::unique_ptr<GinBackend>> proxy =
      WantsDirect() ? direct_gin()->Make(whole.gin)
                    : comm_.device().MakeGinProxy(comm_, whole, window);
  if (!proxy.ok()) TUTTI_TRY(comm_.DeregisterWindow(window->handle));
  return proxy;
}

// All ranks call this together. An error of one rank goes into the exchange of the window's
// registration. No rank waits for another, and all return the same refusal.
Result<ncclDevComm> DeviceCommunicators::Create(
    const Result<ncclDevCommRequirements_t>& requirements) {
  const Result<ResourcePlan> plan = Plan(requirements);
  SymmetricMemory::Request request;
  if (plan.ok()) {
    request.bytes = plan.value().bytes;
    request.alike = plan.value().digest;
    request.said = TextOfRequirements(requirements.value());
  } else {
    request.wrong = plan.status();
  }
  const Result<uint32_t*> flag = AbortFlag();
  if (!flag.ok() && request.wrong.ok()) request.wrong = flag.status();
  TUTTI_ASSIGN(const std::shared_ptr<const Window> window,
               comm_.RegisterWindow(request, Communicator::WindowUse::kResource));
  std::unique_ptr<GinBackend> proxy;
  if (plan.value().gin.present()) {
    TUTTI_ASSIGN(proxy, MakeProxies(plan.value(), window));
  }
  StoreHandles(plan.value());
  const ncclDevComm made = MakeDevComm({.rank = comm_.rank(),
                                        .num_ranks = comm_.num_ranks(),
                                        .lsa_size = comm_.symmetric().team().size,
                                        .plan = &plan.value(),
                                        .resource_window = window->handle,
                                        .resource_record = comm_.symmetric().RecordOf(*window),
                                        .window_table = comm_.symmetric().table(),
                                        .abort_flag = *flag,
                                        .gin_handle = proxy ? proxy->handle() : nullptr,
                                        .gin_direct = proxy && proxy->is_direct()});
  const MutexLock lock(mutex_);
  made_[window->handle] = std::move(proxy);
  return made;
}

// Makes, with the first device communicator, the word that ends the waits of kernels. Abort may run
// at the same time, without the mutex. Both functions store first and then look at the store of the
// other, and at least one of them sees the other.
Result<uint32_t*> DeviceCommunicators::AbortFlag() {
  const MutexLock lock(mutex_);
  if (flag_ == nullptr) {
    TUTTI_ASSIGN(flag_, comm_.device().MakeKernelFlag());
    flag_of_kernels_.store(flag_.get());
    // An Abort that saw no flag has set `aborted_` before.
    if (aborted_.load()) flag_->store(1);
  }
  return reinterpret_cast<uint32_t*>(flag_.get());
}

void DeviceCommunicators::Abort() {
  aborted_.store(true);
  if (auto* const flag = flag_of_kernels_.load()) flag->store(1);
}

// The proxy ends before the window, because the proxy reads and writes words of the window. Both
// end even after a failed wait.
Status DeviceCommunicators::Destroy(const void* devcomm) {
  const ncclWindow_t window = ResourceWindowOf(devcomm);
  std::unique_ptr<GinBackend> proxy;
  {
    const MutexLock lock(mutex_);
    const auto found = made_.find(window);
    if (found == made_.end())
      return InvalidArgument("the device communicator is none of this communicator");
    proxy = std::move(found->second);
    made_.erase(found);
  }
  Status finished;
  if (proxy) finished = proxy->Finish(comm_.InitDeadline());
  proxy.reset();
  Status gone = comm_.DeregisterWindow(window);
  return finished.ok() ? gone : finished;
}

GpuGin& DeviceCommunicators::gpu_gin() {
  if (gpu_gin_ == nullptr) gpu_gin_ = std::make_unique<GpuGin>(comm_);
  return *gpu_gin_;
}

// If a card cannot be driven, ranks on hosts fail with the reason, and GPUs use the proxy.
std::string DeviceCommunicators::WhyProxy() const {
  if (!comm_.settings().gin_enable || comm_.settings().gin_type != NCCL_GIN_TYPE_GDAKI)
    return "NCCL_GIN_TYPE is not 3, which has them drive mlx5 cards themselves";
  const MutexLock lock(mutex_);
  if (comm_.device().manner().proxy_for_cards && direct_gin_ && direct_gin_->refused())
    return std::string(direct_gin_->why_refused().message());
  return {};
}

bool DeviceCommunicators::WantsDirect() const { return WhyProxy().empty(); }

Result<Agreement> DeviceCommunicators::ShareDirect(const Window& window) {
  if (!WantsDirect()) return Agreement();
  if (direct_gin() == nullptr) {
    if (comm_.settings().encrypt)
      TUTTI_WARN(
          "TUTTI_ENCRYPT is set, but NCCL_GIN_TYPE=3 has kernels drive cards, which send data "
          "without encryption");
    auto made = std::make_unique<DirectGin>(comm_);
    const MutexLock lock(mutex_);
    direct_gin_ = std::move(made);
  }
  return direct_gin()->Share(window);
}

void DeviceCommunicators::ForgetDirect(ncclWindow_t window) {
  if (DirectGin* const gin = direct_gin()) gin->Forget(window);
}

DirectGin* DeviceCommunicators::direct_gin() {
  const MutexLock lock(mutex_);
  return direct_gin_.get();
}

void DeviceCommunicators::Clear() {
  const MutexLock lock(mutex_);
  for (auto& [window, proxy] : made_) {
    // Puts that other ranks do not take in time are given up, because the communicator goes away.
    if (proxy) static_cast<void>(proxy->Finish(comm_.InitDeadline()).ok());
  }
  made_.clear();
  gpu_gin_.reset();
  direct_gin_.reset();
}

}  // namespace tutti
