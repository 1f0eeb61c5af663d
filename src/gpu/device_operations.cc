#include "gpu/device_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

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

namespace {

bool IsOneSided(const IssuedTask& issued) { return issued.task.one_sided != nullptr; }

// Returns the tasks that are no one-sided calls.
std::vector<IssuedTask> OthersOf(std::span<const IssuedTask> tasks) {
  std::vector<IssuedTask> others;
  std::remove_copy_if(tasks.begin(), tasks.end(), std::back_inserter(others), IsOneSided);
  return others;
}

}  // namespace

Status DeviceOperations::CheckTasks(std::span<const IssuedTask> tasks) const {
  const cuda::ContextScope scope(device().driver(), device().context());
  if (std::any_of(tasks.begin(), tasks.end(), IsOneSided)) {
    for (const IssuedTask& issued : tasks)
      if (IsOneSided(issued)) TUTTI_TRY(issued.task.one_sided->Check(issued.stream));
    const std::vector<IssuedTask> others = OthersOf(tasks);
    return others.empty() ? Status::Ok() : CheckTasks(others);
  }
  TUTTI_TRY(queue_->CheckTasks(tasks));
  return PrepareTasks(tasks);
}

Status DeviceOperations::CheckWishes(const Task& task) const {
  if (task.wishes.timeout_ns > 0)
    return InvalidUsage(
        "a time-out for one call is for host ranks; abort the communicator of GPUs");
  const bool moves = task.count > 0 && peers_.peers.size() > 1;
  if (!task.wishes.demands_algorithms || !moves) return Status::Ok();
  if ((task.wishes.algorithms & Bit(AlgorithmFor(task))) != 0) return Status::Ok();
  return InvalidUsage("none of the algorithms that algSelection leaves serves this {} of {} bytes",
                      Name(task.collective), task.bytes());
}

Status DeviceOperations::Run(uint64_t, std::span<const IssuedTask> tasks) {
  if (watch_.stopped()) return watch_.StopReason();
  if (std::any_of(tasks.begin(), tasks.end(), IsOneSided)) return RunWithOneSided(tasks);
  GpuQueue::Outcome launched = Launch(tasks);
  if (launched.status.ok() || !launched.begun) return std::move(launched.status);
  return StopBehind(launched.status);
}

// Stops the communicator behind what is under way already: the operations of the other ranks would
// meet those that this rank calls next.
Status DeviceOperations::StopBehind(const Status& failure) {
  const int rank = peers_.bootstrap->rank();
  watch_.Stop(
      Status(failure.code(), fmt::format("{} could not launch what the other ranks launch: {}",
                                         RankName(rank, peers_.peers[static_cast<size_t>(rank)]),
                                         failure.message())),
      /*tell=*/true);
  return watch_.StopReason();
}

// In a group, calls that wait come after all others, which another rank may be waiting for.
Status DeviceOperations::RunWithOneSided(std::span<const IssuedTask> tasks) {
  TUTTI_TRY(CheckTasks(tasks));
  Status queued = RunOneSided(tasks, /*waits=*/false);
  const std::vector<IssuedTask> others = OthersOf(tasks);
  if (queued.ok() && !others.empty()) queued = Run(0, others);
  if (queued.ok()) queued = RunOneSided(tasks, /*waits=*/true);
  return queued.ok() || watch_.stopped() ? queued : StopBehind(queued);
}

Status DeviceOperations::RunOneSided(std::span<const IssuedTask> tasks, bool waits) const {
  const cuda::ContextScope scope(device().driver(), device().context());
  for (const IssuedTask& issued : tasks)
    if (IsOneSided(issued) && issued.task.one_sided->waits() == waits)
      TUTTI_TRY(issued.task.one_sided->Run(issued.stream));
  return Status::Ok();
}

GpuQueue::Outcome DeviceOperations::Launch(std::span<const IssuedTask> tasks) {
  const cuda::ContextScope scope(device().driver(), device().context());
  if (Status checked = queue_->CheckTasks(tasks); !checked.ok()) return {std::move(checked)};
  const MutexLock lock(launch_mutex_);
  Status launched = LaunchTasks(tasks);
  GpuQueue::Outcome left = queue_->Leave(tasks);
  return {launched.ok() ? std::move(left.status) : std::move(launched), left.begun};
}

Status DeviceOperations::RecordLaunchEvent(const Task& task, cuda::Stream stream) const {
  const cuda::Event event = LaunchEventOf(task);
  if (event == nullptr) [[likely]]
    return Status::Ok();
  return device().driver().Check(device().driver().EventRecord(event, stream),
                                 "recording launchCompletionEvent");
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
