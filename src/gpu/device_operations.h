#pragma once

// DeviceOperations has what the operations of GPUs have in common, whether of gpu/mesh.h or
// gpu/channels.h: the queue, the check of the caller's arguments, the lowering and planning of
// tasks, the comparison of calls with the other ranks, and leaving. A subclass launches what is
// planned.
//
// Launches may come from any thread and are made one at a time. Nothing waits for another rank: a
// launch only queues kernels; ranks meet inside them.

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backend/cuda/memory.h"
#include "base/mutex.h"
#include "base/status.h"
#include "gpu/queue.h"
#include "gpu/windows.h"
#include "operations/operations.h"
#include "plan/lower.h"
#include "plan/planner.h"
#include "sys/event_loop.h"
#include "watch/call_checker.h"
#include "watch/watch.h"

namespace tutti {

class DeviceOperations : public Operations {
 public:
  // Begins to compare calls with those of the other ranks. Called once, before the first Run.
  void StartChecking(EventLoop& loop);

  Status CheckTasks(std::span<const IssuedTask> tasks) const final;
  Status CheckWishes(const CollectiveTask& task) const override;
  double PredictUs(const Task& task) const final {
    return tutti::PredictUs(planner_.context(), task);
  }
  std::string Describe(const CollectiveTask& task) const final;
  Status Run(uint64_t ticket, std::span<const IssuedTask> tasks) final;
  Status WaitForAll() final;
  void Abort() override { queue_->Abort(); }
  void NoteAbort() final;
  void Finish() final;
  std::string_view RankKind() const final { return "ranks that are GPUs"; }
  OneSidedNetwork one_sided_network() const final { return one_sided_network_; }
  // Called once, before the first use.
  void set_one_sided_network(OneSidedNetwork network) { one_sided_network_ = std::move(network); }
  std::string DescribeTransports() const final;
  Status CheckIdle() const final;
  Status GiveBackMemory() final;
  Result<Agreement> TakeBackMemory(Deadline deadline, const std::atomic<bool>* abort_flag) final;

 protected:
  // `peers` and `watch` must outlive the operations, and so must what `peers` points to, except for
  // its abort flag.
  DeviceOperations(const GpuPeers& peers, Watch& watch)
      : Operations(HandOver::kOnStream), peers_(peers), watch_(watch) {}

  // Launch a collective as planned, the collective of a rank that is alone, and messages, all in one.
  // They wait for no other rank. `begun` (may be null) is recorded when the last kernel has begun.
  virtual Status LaunchPlanned(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_) = 0;
  virtual Status LaunchAlone(const CollectiveTask& task, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  virtual Status LaunchMessages(std::span<const MessageTask> messages, const CallWishes& wishes,
                                cuda::Stream stream, cuda::Event begun)
      TUTTI_REQUIRES(launch_mutex_) = 0;
  // Launches a collective: by its plan, or as what it is lowered to.
  virtual Status LaunchCollective(const CollectiveTask& task, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // Returns how the ranks reach the buffers of a task.
  virtual Buffers BuffersOf(const CollectiveTask&) const TUTTI_REQUIRES(launch_mutex_) {
    return Buffers::kOwn;
  }
  // Returns a byte of memory, for barriers.
  virtual std::byte* scratch() const = 0;
  // Returns a plan in words.
  virtual std::string DescribePlan(const CollectiveTask& task, const Plan& plan) const = 0;
  // Takes memory that launching the tasks needs and that cannot be had while kernels run. Called
  // before the first launch of a group that has tasks of several communicators: a thread that
  // drives several ranks could not launch the kernel of one while that of another waits for it.
  virtual Status PrepareTasks(std::span<const IssuedTask>) const { return Status::Ok(); }
  // Ends the threads that serve kernels. REQUIRES: the queue is drained, or aborted.
  virtual void StopThreads() {}
  // Returns how the GPUs are joined, in words.
  virtual std::string DescribePath() const = 0;
  virtual uint64_t PinnedBytes() const = 0;
  // The parts of CheckIdle, GiveBackMemory and TakeBackMemory that depend on how GPUs are joined.
  virtual Status CheckCanGiveBack() const = 0;
  virtual Status GiveBackWindows() = 0;
  virtual Result<Agreement> TakeBackWindows(const GpuPeers& peers) = 0;

  // Returns the event that is to happen when the task's kernel has begun; null: none.
  static cuda::Event LaunchEventOf(const CollectiveTask& task) {
    return task.extras ? static_cast<cuda::Event>(task.extras->launch_event) : nullptr;
  }
  // Returns where tasks are lowered. `pack` may be null.
  LowerPlace PlaceWith(std::byte* pack) const;
  // Returns the size of the memory in which buffers are packed. Any thread.
  size_t PackBytes() const { return pack_bytes_.load(std::memory_order_relaxed); }

  const cuda::Device& device() const { return *peers_.device; }
  const GpuPeers& peers() const { return peers_; }
  Watch& watch() const { return watch_; }

  // Guards the order of launches, and what a subclass changes in them.
  mutable Mutex launch_mutex_;
  std::unique_ptr<GpuQueue> queue_;  // Set once, by the subclass, before the first Run.
  // Set once, as queue_. Planner::For is called with launch_mutex_ held.
  Planner planner_;
  // OpSignature::registered of the call that is being launched.
  uint32_t registered_ TUTTI_GUARDED_BY(launch_mutex_) = 0;

 private:
  // Queues the tasks of one group: the collectives one after another, and then all messages
  // together, whatever their order in the group was. It is the same on all ranks.
  Status LaunchTasks(std::span<const IssuedTask> tasks) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchCall(const CollectiveTask& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  // Notes for the comparison with the other ranks that the task was launched. Captured tasks are
  // not noted, because ranks may capture as often as they like, in any order.
  void Note(const Task& task) TUTTI_REQUIRES(launch_mutex_) {
    if (calls_ != nullptr && !queue_->captured()) calls_->Note(task, registered_);
  }
  // Launches one step of a lowered task, or a task that is not lowered.
  Status LaunchStep(const CollectiveTask& task, Buffers buffers, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // Records the event that is to happen when the task's kernel has begun, if there is one, before
  // anything of the task is launched. What is launched records the event anew, except for copies and
  // where cuda::LaunchShape says that the event is left as it is.
  Status RecordLaunchEvent(const CollectiveTask& task, cuda::Stream stream) const;
  // Allocates the memory in which buffers of the task are packed, where the task needs any and there
  // is none yet.
  Status PreparePacking(const CollectiveTask& task) TUTTI_REQUIRES(launch_mutex_);
  GpuQueue::Outcome Launch(std::span<const IssuedTask> tasks);
  Status RunWithOneSided(std::span<const IssuedTask> tasks);
  Status RunOneSided(std::span<const IssuedTask> tasks, bool waits) const;
  Status StopBehind(const Status& failure);

  const GpuPeers peers_;
  Watch& watch_;
  OneSidedNetwork one_sided_network_;
  std::unique_ptr<CallChecker> calls_;  // Null where there is no other rank.
  bool done_when_aborted_ = false;
  cuda::MappedMemory pack_ TUTTI_GUARDED_BY(launch_mutex_);
  std::atomic<size_t> pack_bytes_ = 0;
};

}  // namespace tutti
