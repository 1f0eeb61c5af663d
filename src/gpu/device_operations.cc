#include "gpu/device_operations.h"

#include <fmt/format.h>

#include "base/log.h"
#include "gpu/device_tasks.h"
#include "plan/cost_table.h"

namespace tutti {

void DeviceOperations::StartChecking(EventLoop& loop) {
  const Bootstrap& bootstrap = *peers_.bootstrap;
  if (bootstrap.num_ranks() == 1) return;
  calls_ = std::make_unique<CallChecker>(
      loop, watch_,
      CallChecker::Options{.rank = bootstrap.rank(), .num_ranks = bootstrap.num_ranks()},
      [this] { return queue_->State() == QueueState::kUnderWay; });
}

Status DeviceOperations::CheckTasks(std::span<const IssuedTask> tasks) const {
  const cuda::ContextScope scope(device().driver(), device().context());
  TUTTI_TRY(queue_->CheckTasks(tasks));
  return PrepareTasks(tasks);
}

Status DeviceOperations::CheckWishes(const Task& task) const {
  if (task.wishes.timeout_ns > 0)
    return InvalidUsage(
        "a time-out for one call is for host ranks; abort the communicator of GPUs");
  if (task.wishes.demands_algorithms)
    return InvalidUsage(
        "between GPUs algorithms cannot be demanded for one call yet: set forceAlgSelection to 0, "
        "or NCCL_ALGO for the whole job");
  return Status::Ok();
}

Status DeviceOperations::Run(uint64_t, std::span<const IssuedTask> tasks) {
  if (watch_.stopped()) return watch_.StopReason();
  GpuQueue::Outcome launched = Launch(tasks);
  if (launched.status.ok() || !launched.begun) return std::move(launched.status);
  // The operations of the other ranks would meet those that this rank calls next.
  const int rank = peers_.bootstrap->rank();
  watch_.Stop(Status(launched.status.code(),
                     fmt::format("{} could not launch what the other ranks launch: {}",
                                 RankName(rank, peers_.peers[static_cast<size_t>(rank)]),
                                 launched.status.message())),
              /*tell=*/true);
  return watch_.StopReason();
}

GpuQueue::Outcome DeviceOperations::Launch(std::span<const IssuedTask> tasks) {
  const cuda::ContextScope scope(device().driver(), device().context());
  if (Status checked = queue_->CheckTasks(tasks); !checked.ok()) return {std::move(checked)};
  const MutexLock lock(launch_mutex_);
  Status launched = LaunchTasks(tasks);
  GpuQueue::Outcome left = queue_->Leave(tasks);
  return {launched.ok() ? std::move(left.status) : std::move(launched), left.begun};
}

Status DeviceOperations::PreparePacking(const Task& task) {
  if (task.scattered->inputs.size() < 2 || pack_.data() != nullptr) return Status::Ok();
  TUTTI_ASSIGN(pack_, cuda::MappedMemory::Create(device(), kGpuPackedBytes, nullptr));
  pack_bytes_.store(pack_.size(), std::memory_order_relaxed);
  return Status::Ok();
}

Status DeviceOperations::WaitForAll() {
  Status drained = queue_->Drain();
  if (!drained.ok()) watch_.Stop(drained, /*tell=*/true);  // nothing works after such an error
  return drained;
}

void DeviceOperations::NoteAbort() {
  done_when_aborted_ = !watch_.stopped() && queue_->State() == QueueState::kDone;
}

void DeviceOperations::Finish() {
  // Kernels of a communicator that has stopped end by themselves; others end with their peers.
  const Status drained = queue_->Drain();
  if (!drained.ok())
    TUTTI_WARN("a communicator is destroyed although its GPU fails: {}", drained.message());
  if (calls_) calls_->SendLeaveNotice(done_when_aborted_ || (drained.ok() && !watch_.stopped()));
  calls_.reset();
  StopThreads();
}

std::string DeviceOperations::DescribeTransports() const {
  const PeerInfo& self = peers_.peers[static_cast<size_t>(peers_.bootstrap->rank())];
  return fmt::format("CUDA device {} of {}, {} ({} MiB of its memory, {} MiB pinned)",
                     device().ordinal(), self.host, DescribePath(), MemoryBytes() >> 20,
                     PinnedBytes() >> 20);
}

}  // namespace tutti
