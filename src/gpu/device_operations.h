#pragma once

// DeviceOperations is the base of the operations of GPUs, which are GpuMesh (gpu/mesh.h) and
// GpuChannels (gpu/channels.h). The class owns the queue, checks the caller's arguments, lowers and
// plans tasks, compares calls with the other ranks, and leaves. A subclass launches planned tasks.
//
// Any thread may launch; the launches of a communicator are made one at a time. No launch waits for
// another rank: a launch only queues kernels, and ranks meet inside the kernels.

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
#include "plan/plan.h"
#include "sys/event_loop.h"
#include "watch/call_checker.h"
#include "watch/watch.h"

namespace tutti {

class DeviceOperations : public Operations {
 public:
  // Begins to compare the calls of this rank with the calls of the other ranks. Called once, before
  // the first Run.
  void StartChecking(EventLoop& loop);

  Status CheckTasks(std::span<const IssuedTask> tasks) const final;
  Status CheckWishes(const CollectiveTask& task) const override;
  double PredictUs(const Task& task) const final { return planner_.PredictUs(task); }
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
  // Has a tuner advise the plans. Null: no tuner. The tuner must outlive the operations. Called
  // once, before the first Run.
  void set_tuner(CostAdviser* tuner) { planner_ = Planner(planner_.context(), tuner); }
  const MachineMap& machines() const final { return peers_.machines; }
  std::string DescribeTransports() const final;
  Status CheckIdle() const final;
  Status GiveBackMemory() final;
  Result<Agreement> TakeBackMemory(Deadline deadline, const std::atomic<bool>* abort_flag) final;

 protected:
  // `peers`, `watch` and all objects that `peers` points to, except its abort flag, must outlive
  // the operations.
  DeviceOperations(const GpuPeers& peers, Watch& watch)
      : Operations(HandOver::kOnStream), peers_(peers), watch_(watch) {}

  // None of the following four functions waits for another rank.
  //
  // Launches a collective as planned.
  virtual Status LaunchPlanned(const CollectiveTask& task, const Plan& plan, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_) = 0;
  // Launches a collective of a communicator of a single rank.
  virtual Status LaunchAlone(const CollectiveTask& task, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // Launches messages that run together. `begun` (may be null) is for cuda::LaunchShape of the last
  // kernel; a mesh ignores `wishes` and `begun`.
  virtual Status LaunchMessages(std::span<const MessageTask> messages, const CallWishes& wishes,
                                cuda::Stream stream, cuda::Event begun)
      TUTTI_REQUIRES(launch_mutex_) = 0;
  // Launches a collective by its plan, or the steps and messages that the collective is lowered to.
  virtual Status LaunchCollective(const CollectiveTask& task, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // Returns how the ranks reach the buffers of a task.
  virtual Buffers BuffersOf(const CollectiveTask&) const TUTTI_REQUIRES(launch_mutex_) {
    return Buffers::kOwn;
  }
  // Returns the byte that barriers add, in memory that the GPU reaches.
  virtual std::byte* scratch() const = 0;
  // Returns a plan in words.
  virtual std::string DescribePlan(const CollectiveTask& task, const Plan& plan) const = 0;
  // Takes the memory for a launch of the tasks that cannot be had while kernels run.
  // Called before the first launch of a group with tasks of several communicators, because a thread
  // that drives several ranks could not launch the kernel of one rank while the kernel of another
  // rank waits for it.
  virtual Status PrepareTasks(std::span<const IssuedTask>) const { return Status::Ok(); }
  // Ends the threads that serve kernels. REQUIRES: the queue is drained, or aborted.
  virtual void StopThreads() {}
  // Returns how the GPUs are joined, in words.
  virtual std::string DescribePath() const = 0;
  virtual uint64_t PinnedBytes() const = 0;
  // Do the part of CheckIdle, GiveBackMemory and TakeBackMemory that depends on how GPUs are
  // joined.
  virtual Status CheckCanGiveBack() const = 0;
  virtual Status GiveBackWindows() = 0;
  virtual Result<Agreement> TakeBackWindows(const GpuPeers& peers) = 0;

  // Returns the event to be recorded when the task's kernel has begun, or null without an event.
  static cuda::Event LaunchEventOf(const CollectiveTask& task) {
    return task.extras ? static_cast<cuda::Event>(task.extras->launch_event) : nullptr;
  }
  // Returns the LowerPlace of this rank, with the packing memory `pack` (may be null).
  LowerPlace PlaceWith(std::byte* pack) const;
  // Returns the size of the memory in which buffers are packed. Called on any thread.
  size_t PackBytes() const { return pack_bytes_.load(std::memory_order_relaxed); }

  const cuda::Device& device() const { return *peers_.device; }
  const GpuPeers& peers() const { return peers_; }
  Watch& watch() const { return watch_; }

  // Guards the order of launches and the members that a launch changes in a subclass.
  mutable Mutex launch_mutex_;
  std::unique_ptr<GpuQueue> queue_;  // Set once, by the subclass, before the first Run.
  // Set once, by the subclass, before the first Run. Planner::For is called with launch_mutex_
  // held.
  Planner planner_;
  // OpSignature::registered of the call that is being launched.
  uint32_t registered_ TUTTI_GUARDED_BY(launch_mutex_) = 0;
  // OpSignature::advised of the call that is being launched.
  uint32_t advised_ TUTTI_GUARDED_BY(launch_mutex_) = 0;

 private:
  // Queues the tasks of one group: first the collectives one after another, then all messages
  // together, whatever their order in the group. All ranks queue in this order.
  Status LaunchTasks(std::span<const IssuedTask> tasks) TUTTI_REQUIRES(launch_mutex_);
  Status LaunchCall(const CollectiveTask& task, cuda::Stream stream) TUTTI_REQUIRES(launch_mutex_);
  // Notes the launched task for the comparison with the other ranks. Captured tasks are not noted,
  // because ranks may capture as often as they like, in any order.
  void Note(const Task& task) TUTTI_REQUIRES(launch_mutex_) {
    if (calls_ != nullptr && !queue_->captured()) calls_->Note(task, registered_, advised_);
  }
  // Launches one step of a lowered task, or a task that is not lowered.
  Status LaunchStep(const CollectiveTask& task, Buffers buffers, cuda::Stream stream)
      TUTTI_REQUIRES(launch_mutex_);
  // Records the launch event of the task, if the task has an event, before anything of the task is
  // launched. Kernels of the task record the event anew. The first record stays where the task only
  // copies, for messages of a mesh, and where the driver refuses the event (cuda::LaunchShape).
  Status RecordLaunchEvent(const CollectiveTask& task, cuda::Stream stream) const;
  // Allocates the memory in which buffers of the task are packed, if the task needs the memory and
  // no earlier task has allocated it.
  Status PreparePacking(const CollectiveTask& task) TUTTI_REQUIRES(launch_mutex_);
  // Checks and launches the tasks of one group, without one-sided calls.
  GpuQueue::Outcome Launch(std::span<const IssuedTask> tasks);
  // Runs a group with one-sided calls.
  Status RunWithOneSided(std::span<const IssuedTask> tasks);
  Status StopBehind(const Status& failure);

  const GpuPeers peers_;
  Watch& watch_;
  OneSidedNetwork one_sided_network_;
  std::unique_ptr<CallChecker> calls_;  // Null in a communicator of a single rank.
  bool done_when_aborted_ = false;      // NoteAbort found all operations done.
  cuda::MappedMemory pack_ TUTTI_GUARDED_BY(launch_mutex_);  // See PreparePacking.
  std::atomic<size_t> pack_bytes_ = 0;
};

}  // namespace tutti
