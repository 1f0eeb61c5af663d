#pragma once

// DeviceOperations has what the operations of GPUs have in common, whether of gpu/mesh.h or
// gpu/channels.h: the queue, the check of the caller's arguments, the comparison of calls with the
// other ranks, and leaving. A subclass launches the tasks of a group.
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
#include "sys/event_loop.h"
#include "watch/call_checker.h"
#include "watch/watch.h"

namespace tutti {

class DeviceOperations : public Operations {
 public:
  // Begins to compare calls with those of the other ranks. Called once, before the first Run.
  void StartChecking(EventLoop& loop);

  Status CheckTasks(std::span<const IssuedTask> tasks) const final;
  Status CheckWishes(const Task& task) const override;
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

  // Queues the tasks of one group. Waits for no other rank.
  virtual Status LaunchTasks(std::span<const IssuedTask> tasks) TUTTI_REQUIRES(launch_mutex_) = 0;
  // Takes memory that launching the tasks needs and that cannot be had while kernels run. Called
  // before the first launch of a group that has tasks of several communicators: a thread that
  // drives several ranks could not launch the kernel of one while that of another waits for it.
  virtual Status PrepareTasks(std::span<const IssuedTask>) const { return Status::Ok(); }
  // Returns what the planner chooses for a collective. REQUIRES: there is something to be moved to
  // another rank.
  virtual Algorithm AlgorithmFor(const Task& task) const TUTTI_EXCLUDES(launch_mutex_) = 0;
  // Ends the threads that serve kernels. REQUIRES: the queue is drained, or aborted.
  virtual void StopThreads() {}
  // Returns how the GPUs are joined, in words.
  virtual std::string DescribePath() const = 0;
  virtual uint64_t PinnedBytes() const = 0;
  // The parts of CheckIdle, GiveBackMemory and TakeBackMemory that depend on how GPUs are joined.
  virtual Status CheckCanGiveBack() const = 0;
  virtual Status GiveBackWindows() = 0;
  virtual Result<Agreement> TakeBackWindows(const GpuPeers& peers) = 0;

  // Notes for the comparison with the other ranks that the task was launched. Captured tasks are
  // not noted, because ranks may capture as often as they like, in any order. `registered`: see
  // OpSignature.
  void Note(const Task& task, uint32_t registered = 0) TUTTI_REQUIRES(launch_mutex_) {
    if (calls_ != nullptr && !queue_->captured()) calls_->Note(task, registered);
  }

  // Returns the event that is to happen when the task's kernel has begun; null: none.
  static cuda::Event LaunchEventOf(const Task& task) {
    return task.extras ? static_cast<cuda::Event>(task.extras->launch_event) : nullptr;
  }
  // Records that event, if there is one, before anything of the task is launched. What is launched
  // records it anew, except for copies and where cuda::LaunchShape says that it is left as it is.
  Status RecordLaunchEvent(const Task& task, cuda::Stream stream) const;

  // Allocates the memory in which buffers of the task are packed (gpu/device_tasks.h), where it
  // needs any and there is none yet.
  Status PreparePacking(const Task& task) TUTTI_REQUIRES(launch_mutex_);
  // Returns the size of that memory. Any thread.
  size_t PackBytes() const { return pack_bytes_.load(std::memory_order_relaxed); }

  const cuda::Device& device() const { return *peers_.device; }
  const GpuPeers& peers() const { return peers_; }
  Watch& watch() const { return watch_; }

  // Guards the order of launches, and what a subclass changes in them.
  mutable Mutex launch_mutex_;
  std::unique_ptr<GpuQueue> queue_;  // set once, by the subclass, before the first Run
  cuda::MappedMemory pack_ TUTTI_GUARDED_BY(launch_mutex_);

 private:
  GpuQueue::Outcome Launch(std::span<const IssuedTask> tasks);
  Status RunWithOneSided(std::span<const IssuedTask> tasks);
  Status RunOneSided(std::span<const IssuedTask> tasks, bool waits) const;
  Status StopBehind(const Status& failure);

  const GpuPeers peers_;
  Watch& watch_;
  OneSidedNetwork one_sided_network_;
  std::unique_ptr<CallChecker> calls_;  // Null where there is no other rank.
  bool done_when_aborted_ = false;
  std::atomic<size_t> pack_bytes_ = 0;
};

}  // namespace tutti
