#include "gpu/device_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/log.h"
#include "gpu/device_tasks.h"
#include "observe/signature.h"
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

bool IsOneSided(const IssuedTask& issued) {
  return std::holds_alternative<OneSidedTask>(issued.task);
}
const OneSidedCall& CallOf(const IssuedTask& issued) {
  return *std::get<OneSidedTask>(issued.task).call;
}

// Returns the tasks that are not one-sided calls.
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
      if (IsOneSided(issued)) TUTTI_TRY(CallOf(issued).Check(issued.stream));
    const std::vector<IssuedTask> others = OthersOf(tasks);
    return others.empty() ? Status::Ok() : CheckTasks(others);
  }
  TUTTI_TRY(queue_->CheckTasks(tasks));
  return PrepareTasks(tasks);
}

Status DeviceOperations::CheckWishes(const CollectiveTask& task) const {
  if (task.wishes.timeout_ns > 0)
    return InvalidUsage(
        "a time-out for one call is for host ranks; abort the communicator of GPUs");
  if (!task.wishes.demands_algorithms) return Status::Ok();
  const MutexLock lock(launch_mutex_);
  return planner_.CheckWishes(task, BuffersOf(task));
}

Status DeviceOperations::Run(uint64_t, std::span<const IssuedTask> tasks) {
  if (watch_.stopped()) return watch_.StopReason();
  if (std::any_of(tasks.begin(), tasks.end(), IsOneSided)) return RunWithOneSided(tasks);
  GpuQueue::Outcome launched = Launch(tasks);
  if (launched.status.ok() || !launched.begun) return std::move(launched.status);
  return StopBehind(launched.status);
}

// Stops the communicator after a launch that failed behind operations already under way. Otherwise
// the operations of the other ranks would meet the next operations of this rank.
Status DeviceOperations::StopBehind(const Status& failure) {
  watch_.Stop(
      Status(failure.code(), fmt::format("{} could not launch what the other ranks launch: {}",
                                         peers_.NameOf(peers_.me()), failure.message())),
      /*tell=*/true);
  return watch_.StopReason();
}

Status DeviceOperations::RunWithOneSided(std::span<const IssuedTask> tasks) {
  const cuda::ContextScope scope(device().driver(), device().context());
  TUTTI_TRY(CheckTasks(tasks));
  Status queued = RunOneSided(tasks, /*waits=*/false);
  const std::vector<IssuedTask> others = OthersOf(tasks);
  if (queued.ok() && !others.empty()) queued = Run(0, others);
  if (queued.ok()) queued = RunOneSided(tasks, /*waits=*/true);
  return queued.ok() || watch_.stopped() ? queued : StopBehind(queued);
}

GpuQueue::Outcome DeviceOperations::Launch(std::span<const IssuedTask> tasks) {
  const cuda::ContextScope scope(device().driver(), device().context());
  if (Status checked = queue_->CheckTasks(tasks); !checked.ok()) return {std::move(checked)};
  const MutexLock lock(launch_mutex_);
  Status launched = LaunchTasks(tasks);
  GpuQueue::Outcome left = queue_->Leave(tasks);
  return {launched.ok() ? std::move(left.status) : std::move(launched), left.begun};
}

Status DeviceOperations::LaunchTasks(std::span<const IssuedTask> tasks) {
  std::vector<MessageTask> messages;
  cuda::Stream first = nullptr;
  for (const IssuedTask& issued : tasks) {
    const auto stream = static_cast<cuda::Stream>(issued.stream);
    if (const auto* const task = std::get_if<CollectiveTask>(&issued.task)) {
      TUTTI_TRY(LaunchCall(*task, stream));
      Note(issued.task);
    } else if (const auto* const message = std::get_if<MessageTask>(&issued.task)) {
      if (messages.empty()) first = stream;
      messages.push_back(*message);
    }
  }
  if (messages.empty()) return Status::Ok();
  registered_ = advised_ = 0;
  TUTTI_TRY(queue_->OrderMessages(tasks));
  TUTTI_TRY(queue_->OrderBehindLast(first));
  TUTTI_TRY(LaunchMessages(messages, {}, first, nullptr));
  TUTTI_TRY(queue_->OrderMessages(tasks));
  for (const IssuedTask& issued : tasks)
    if (std::holds_alternative<MessageTask>(issued.task)) Note(issued.task);
  return Status::Ok();
}

// Orders every call behind the previous call, even a call that queues nothing, because Note asks
// whether the stream is captured. All ranks know alike whether a task is empty, and then no rank
// launches.
Status DeviceOperations::LaunchCall(const CollectiveTask& task, cuda::Stream stream) {
  registered_ = advised_ = 0;
  TUTTI_TRY(queue_->OrderBehindLast(stream));
  TUTTI_TRY(RecordLaunchEvent(task, stream));
  return task.moves_nothing() ? Status::Ok() : LaunchCollective(task, stream);
}

// Lowers a collective without a row, and launches the steps. The steps use this rank's own buffers:
// ranks cut their buffers differently, and some ranks would find a piece registered and others
// would not.
Status DeviceOperations::LaunchCollective(const CollectiveTask& task, cuda::Stream stream) {
  if (!NeedsLowering(planner_.context().kind, task)) [[likely]]
    return LaunchStep(task, BuffersOf(task), stream);
  const bool alone = planner_.context().num_ranks == 1;
  if (alone && task.collective == Collective::kBarrier) return Status::Ok();
  TUTTI_TRY(PreparePacking(task));
  const Lowered lowered = Lower(task, PlaceWith(pack_.data()));
  for (const LoweredStep& step : lowered.steps) {
    if (!step.before.empty()) TUTTI_TRY(device().Copy(step.before, stream));
    TUTTI_TRY(LaunchStep(step.task, Buffers::kOwn, stream));
    if (!step.after.empty()) TUTTI_TRY(device().Copy(step.after, stream));
  }
  if (!lowered.messages.empty())
    TUTTI_TRY(LaunchMessages(lowered.messages, task.wishes, stream, LaunchEventOf(task)));
  return Status::Ok();
}

Status DeviceOperations::LaunchStep(const CollectiveTask& task, Buffers buffers,
                                    cuda::Stream stream) {
  if (planner_.context().num_ranks == 1) return LaunchAlone(task, stream);
  const Plan& plan = planner_.For(task, buffers);
  if (planner_.adviser() != nullptr) advised_ = MixTag(advised_, HashOf(plan));
  return LaunchPlanned(task, plan, stream);
}

Status DeviceOperations::LaunchAlone(const CollectiveTask&, cuda::Stream) {
  return InternalError("a rank that is alone has no channels");
}

Status DeviceOperations::RecordLaunchEvent(const CollectiveTask& task, cuda::Stream stream) const {
  const cuda::Event event = LaunchEventOf(task);
  if (event == nullptr) [[likely]]
    return Status::Ok();
  return device().driver().Check(device().driver().EventRecord(event, stream),
                                 "recording launchCompletionEvent");
}

Status DeviceOperations::PreparePacking(const CollectiveTask& task) {
  const bool packs = task.scattered != nullptr && task.scattered->inputs.size() > 1;
  if (!packs || pack_.data() != nullptr) return Status::Ok();
  TUTTI_ASSIGN(pack_, cuda::MappedMemory::Create(device(), kGpuPackedBytes, nullptr));
  pack_bytes_.store(pack_.size(), std::memory_order_relaxed);
  return Status::Ok();
}

LowerPlace DeviceOperations::PlaceWith(std::byte* pack) const {
  return {.rank = peers_.bootstrap->rank(),
          .num_ranks = peers_.bootstrap->num_ranks(),
          .byte = scratch(),
          .pack = pack,
          .pack_bytes = kGpuPackedBytes};
}

std::string DeviceOperations::Describe(const CollectiveTask& task) const {
  const PlanContext& context = planner_.context();
  if (context.num_ranks == 1) return "one rank copies its input";
  if (task.collective == Collective::kBarrier) return "AllReduce of one byte";
  if (task.collective == Collective::kReduceScatterV) return "a Reduce for each rank";
  if (!Serves(context.kind, task.collective))
    return fmt::format("{}: messages between all pairs", Name(task.collective));
  if (task.count == 0) return "nothing to do";
  return DescribePlan(task, planner_.Make(task));
}

Status DeviceOperations::WaitForAll() {
  Status drained = queue_->Drain();
  if (!drained.ok()) watch_.Stop(drained, /*tell=*/true);  // Nothing works afterwards.
  return drained;
}

void DeviceOperations::NoteAbort() {
  done_when_aborted_ = !watch_.stopped() && queue_->State() == QueueState::kDone;
}

void DeviceOperations::Finish() {
  // Kernels of a stopped communicator end by themselves; other kernels end together with their
  // peers.
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
