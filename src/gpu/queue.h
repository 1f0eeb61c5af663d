#pragma once

// What all ways of running operations on a GPU have in common: the word by which kernels are told
// to give up, the order of operations on different streams, and the look at what a caller gives.
//
// Operations of a communicator run one after another, in the order of their launches, also when
// they are on different streams: a launch on another stream than the last waits for that one by an
// event. Events are recorded right behind the launches. So nothing waits for what the program
// queued there later, and no stream is touched that the program may have destroyed since.
//
// Graphs keep that order too, wherever they are launched (NCCL_GRAPH_MIXING_SUPPORT): the event is
// also an event of theirs. The first operation in a graph waits for it, the last one records it.
//
//   launches   op a | record          ┌→ wait | op d | record
//                        │            │
//   a graph              └→ wait | op b | op c ─ record
//
// Launches come from one thread at a time: CheckTasks, then, between OrderBehindLast and Leave,
// what is queued. Abort and Drain come from any.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/pinned_pool.h"
#include "base/status.h"
#include "config/settings.h"
#include "gpu/pointers.h"
#include "operations/operations.h"

namespace tutti {

enum class QueueState {
  kDone,
  kUnderWay,
  kUnknown,  // CUDA has failed, or an operation was launched whose end leaves no mark
};

// What an AlltoAllV or an AllGatherV is made of, on a stream.
std::vector<IssuedTask> DeviceMessagesOf(const Task& task, int rank, int num_ranks,
                                         cuda::Stream stream);

class GpuQueue {
 public:
  static Result<std::unique_ptr<GpuQueue>> Create(const cuda::Device& device, int rank,
                                                  int num_ranks, const Settings& settings);
  ~GpuQueue();

  const cuda::Device& device() const { return device_; }
  // Pinned; raised by Abort, and looked at by every kernel that waits.
  const uint32_t* abort_word() const { return reinterpret_cast<uint32_t*>(abort_word_.data()); }
  void Abort();
  // Until the last operation is done, and no graph with operations is under way.
  Status Drain();
  // Of the last operation. May wait for whoever else waits for the GPU.
  QueueState State() const;

  // REQUIRES, of what follows: the device's context is current.
  // What is launched on `stream` from here on runs behind all that was launched before.
  Status OrderBehindLast(cuda::Stream stream);
  // Called after the last launch of a group: what comes next may wait for it. What comes later on
  // any of its streams runs behind all of it, as if each task stood on each stream. Until here the
  // streams of this call's launches are taken to be alive.
  struct Left {
    Status status;
    bool begun = false;  // something of the group may be under way on the GPU, outside of graphs
  };
  Left Leave(std::span<const IssuedTask> tasks);
  // The streams of the messages among the tasks, one behind the other. One of them carries all
  // messages: it is ordered behind this, and this once more behind it, for what comes next on each.
  Status OrderMessages(std::span<const IssuedTask> tasks);
  // Whether the stream of the last OrderBehindLast is being captured.
  bool captured() const { return entered_ && entered_->captured; }
  // Holds `what` until the graph that is being captured, and all that is made of it, is gone and
  // has done its last run. It may be let go on a thread of the driver's, where CUDA may not be
  // called. REQUIRES: captured().
  Status KeepInGraph(std::shared_ptr<const void> what) const {
    return KeepIn(entered_->graph, std::move(what));
  }
  Status Copy(void* to, const void* from, size_t bytes, cuda::Stream stream) const;
  // What a caller can have got wrong in the tasks of a group on this rank alone, looked for before
  // any of it is queued: memory that this GPU does not reach, streams that are none, messages to
  // itself that do not meet. (The first task's stream is left to OrderBehindLast, which looks
  // anyway.)
  Status CheckTasks(std::span<const IssuedTask> tasks) const;
  // The messages of the rank to itself among the tasks of a group: the n-th send meets the n-th
  // receive. REQUIRES: they do, see CheckTasks.
  Status CopyOwnMessages(std::span<const IssuedTask> tasks, cuda::Stream stream) const;

 private:
  GpuQueue(const cuda::Device& device, int rank, int num_ranks, const Settings& settings)
      : device_(device),
        rank_(rank),
        mixes_graphs_(settings.graph_mixing),
        pointers_(device, rank, num_ranks, settings.check_pointers) {}
  // A stream, told from others that have had its address.
  struct Place {
    cuda::Stream stream = nullptr;
    std::optional<uint64_t> id = std::nullopt;  // of the stream; none: the driver cannot say
    bool captured = false;
    uint64_t capture = 0;  // which one
    cuda::Graph graph = nullptr;
  };
  // Where the last launch of a kind was, and the event behind it.
  struct Last {
    std::optional<Place> place;
    cuda::Event event = nullptr;
  };
  Result<Place> Look(cuda::Stream stream) const;
  Status HoldUp(std::span<const IssuedTask> tasks);
  Status Record();  // behind what has been launched since OrderBehindLast
  Status BeginInGraph(const Place& place);
  Status MarkInGraph(const Place& place);
  bool HasGraphs() const { return graphs_.use_count() > 1; }
  Status CheckOwnMessages(std::span<const IssuedTask> tasks) const;
  Status KeepIn(cuda::Graph graph, std::shared_ptr<const void> what) const;

  const cuda::Device& device_;
  const int rank_;
  const bool mixes_graphs_;
  const GpuPointers pointers_;
  cuda::PinnedBlock abort_word_;
  // What is captured has an order of its own: it runs when its graph is launched.
  Last launched_;
  Last captured_;
  // Of the last graph: the node that records the event of what is launched.
  struct Mark {
    uint64_t capture = 0;
    cuda::GraphNode node = nullptr;
    std::vector<cuda::GraphNode> behind = {};  // these nodes
  };
  Mark mark_;
  std::optional<Place> entered_;  // between OrderBehindLast and Leave
  bool begun_ = false;            // since the last Leave
  // Something was launched behind which no event could be recorded.
  std::atomic<bool> lost_track_ = false;
  // Every graph with operations has a share in it.
  std::shared_ptr<const int> graphs_ = std::make_shared<int>(0);
};

}  // namespace tutti
