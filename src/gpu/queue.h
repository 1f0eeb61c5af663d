#pragma once

// The queue of a communicator's operations on a GPU, whatever runs them: the word by which kernels
// are told to give up, the order of operations on different streams, and the checks of what a
// caller passes.
//
// Operations of a communicator run one after another, in the order of their launches, also when
// they are on different streams: a launch on another stream than the last one waits for that one by
// an event. Events are recorded right behind the launches. So no operation waits for work that the
// program queued later, and no stream is touched that the program may have destroyed since.
//
// Graphs keep that order too, wherever they are launched (NCCL_GRAPH_MIXING_SUPPORT), because they
// use the same event: the first operation in a graph waits for it, and the last one records it.
//
//   launches   op a | record          ┌→ wait | op d | record
//                        │            │
//   a graph              └→ wait | op b | op c ─ record
//
// Launches come from one thread at a time, which calls CheckTasks, then OrderBehindLast, queues its
// work, and calls Leave. Abort and Drain may be called from any thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/copy_args.h"
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
  kUnknown,  // CUDA has failed, or an operation was launched whose end cannot be seen.
};

class GpuQueue {
 public:
  static Result<std::unique_ptr<GpuQueue>> Create(const cuda::Device& device, int rank,
                                                  int num_ranks, const Settings& settings);
  ~GpuQueue();

  const cuda::Device& device() const { return device_; }
  // Returns the word in pinned memory that Abort raises and every waiting kernel looks at.
  const uint32_t* abort_word() const { return reinterpret_cast<uint32_t*>(abort_word_.data()); }
  void Abort();
  // Waits until the last operation is done and no graph with operations is under way.
  Status Drain();
  // Returns the state of the last operation. May wait for other threads that wait for the GPU.
  QueueState State() const;

  // REQUIRES, for all functions below: the device's context is current.

  // Orders everything that is launched on `stream` from here on behind all that was launched
  // before.
  Status OrderBehindLast(cuda::Stream stream);
  // Says how the launches of a group ended.
  struct Outcome {
    Status status;
    bool begun = false;  // Some of the group may be under way on the GPU, outside of graphs.
  };
  // Ends the launches of a group, so that later operations can wait for them. Later work on any of
  // the group's streams runs behind the whole group, as if each task stood on each stream. The
  // streams have to be alive until here.
  Outcome Leave(std::span<const IssuedTask> tasks);
  // Orders the streams of the messages among the tasks one behind the other. One of them carries
  // all messages. It is called before the messages, so that they wait for all streams, and again
  // after them, so that later work on each stream waits for the messages.
  Status OrderMessages(std::span<const IssuedTask> tasks);
  // Returns whether the stream of the last OrderBehindLast is being captured.
  bool captured() const { return entered_ && entered_->captured; }
  // Returns whether graphs keep the order that they are launched in among all operations.
  bool mixes_graphs() const { return mixes_graphs_; }
  // Keeps `what` until the graph that is being captured, and all that is made of it, is gone and
  // has done its last run. It may be freed on a thread of the driver, where CUDA may not be called.
  // REQUIRES: captured().
  Status KeepInGraph(std::shared_ptr<const void> what) const {
    return KeepIn(entered_->graph, std::move(what));
  }
  Status Copy(void* to, const void* from, size_t bytes, cuda::Stream stream) const;
  Status Copy(const CopyPiece& piece, cuda::Stream stream) const {
    return Copy(piece.to, piece.from, piece.bytes, stream);
  }
  // Checks the tasks of a group for what a caller can have got wrong on this rank alone, before any
  // of them is queued: memory that this GPU does not reach, pointers that are no streams, messages
  // of the rank to itself that do not meet. (OrderBehindLast checks the first task's stream.)
  Status CheckTasks(std::span<const IssuedTask> tasks) const;

 private:
  GpuQueue(const cuda::Device& device, int rank, int num_ranks, const Settings& settings)
      : device_(device),
        rank_(rank),
        mixes_graphs_(settings.graph_mixing),
        pointers_(device, rank, num_ranks, settings.check_pointers) {}
  // A stream, distinguished from earlier ones that had its address.
  struct Place {
    cuda::Stream stream = nullptr;
    std::optional<uint64_t> id = std::nullopt;  // None where the driver cannot say.
    bool captured = false;
    uint64_t capture = 0;  // The number of the capture.
    cuda::Graph graph = nullptr;
  };
  // Says where the last launch of a kind was, and has the event behind it.
  struct Last {
    std::optional<Place> place;
    cuda::Event event = nullptr;
  };
  Result<Place> Look(cuda::Stream stream) const;
  Status HoldUp(std::span<const IssuedTask> tasks);
  // Records the event behind what has been launched since OrderBehindLast.
  Status Record();
  Status BeginInGraph(const Place& place);
  Status MarkInGraph(const Place& place);
  bool HasGraphs() const { return graphs_.use_count() > 1; }
  Status KeepIn(cuda::Graph graph, std::shared_ptr<const void> what) const;

  const cuda::Device& device_;
  const int rank_;
  const bool mixes_graphs_;
  const GpuPointers pointers_;
  cuda::PinnedBlock abort_word_;
  // Captured operations have an order of their own, because they run when their graph is launched.
  Last launched_;
  Last captured_;
  // The node of the last graph that records the event of what is launched.
  struct Mark {
    uint64_t capture = 0;
    cuda::GraphNode node = nullptr;
    std::vector<cuda::GraphNode> behind = {};  // The nodes that it comes after.
  };
  Mark mark_;
  std::optional<Place> entered_;  // The stream in use between OrderBehindLast and Leave.
  bool begun_ = false;            // Something was launched since the last Leave.
  // True when no event could be recorded behind something that was launched.
  std::atomic<bool> lost_track_ = false;
  // Every graph with operations holds a reference, so that the count tells whether there are any.
  std::shared_ptr<const int> graphs_ = std::make_shared<int>(0);
};

}  // namespace tutti
