#pragma once

// GpuQueue is the queue of a communicator's operations on a GPU, for a mesh and for channels alike:
// the word by which kernels are told to give up, the order of operations on different streams, and
// the checks of a caller's arguments.
//
// The operations of a communicator run one after another, in the order of their launches, even on
// different streams. A launch on another stream than the last launch waits for the last launch by
// an event. Events are recorded right behind the launches. No operation therefore waits for work
// that the program queued later, and the queue touches no stream that the program may have
// destroyed since.
//
// Graphs keep this order too, wherever they are launched (NCCL_GRAPH_MIXING_SUPPORT), because they
// use the same event: the first operation in a graph waits for the event, and the last operation
// records the event.
//
//   launches   op a | record          ┌→ wait | op d | record
//                        │            │
//   a graph              └→ wait | op b | op c ─ record
//
// One thread at a time launches: the thread calls CheckTasks, then OrderBehindLast, queues its
// work, and calls Leave. Abort and Drain may be called on any thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/cuda/copy_args.h"
#include "backend/cuda/device.h"
#include "backend/cuda/own_stream.h"
#include "backend/cuda/pinned_pool.h"
#include "base/status.h"
#include "config/settings.h"
#include "gpu/pointers.h"
#include "operations/operations.h"

namespace tutti {

enum class QueueState {
  kDone,
  kUnderWay,
  kUnknown,  // CUDA has failed, or the end of an operation cannot be seen.
};

class GpuQueue {
 public:
  static Result<std::unique_ptr<GpuQueue>> Create(const cuda::Device& device, int rank,
                                                  int num_ranks, const Settings& settings);

  const cuda::Device& device() const { return device_; }
  // Returns the word in pinned memory that Abort raises and every waiting kernel polls.
  const uint32_t* abort_word() const { return reinterpret_cast<uint32_t*>(abort_word_.data()); }
  void Abort();
  // Waits until the last operation is done and no graph with operations is under way.
  Status Drain();
  // Returns the state of the last operation. May wait for other threads that wait for the GPU.
  QueueState State() const;

  // REQUIRES, for all functions below: the device's context is current.

  // Orders all later launches on `stream` behind all launches so far.
  Status OrderBehindLast(cuda::Stream stream);
  // Says how the launches of a group ended.
  struct Outcome {
    Status status;
    bool begun = false;  // Some of the group may be under way on the GPU, outside of graphs.
  };
  // Ends the launches of a group, and lets later operations wait for the group. Later work on any
  // of the group's streams runs behind the whole group, as if each task stood on each stream. The
  // streams have to be alive until Leave returns.
  Outcome Leave(std::span<const IssuedTask> tasks);
  // Orders the streams of the messages among the tasks behind one another, because a single stream
  // carries all messages. Called before the messages are launched, to let the messages wait for all
  // streams, and again afterwards, to let later work on each stream wait for the messages.
  Status OrderMessages(std::span<const IssuedTask> tasks);
  // Returns whether the stream of the last OrderBehindLast is being captured.
  bool captured() const { return entered_ && entered_->captured; }
  // Returns whether graphs take part in the order of all operations when they are launched.
  bool mixes_graphs() const { return mixes_graphs_; }
  // Keeps `what` until the graph under capture and everything made from the graph are gone and have
  // done their last run. `what` may be freed on a thread of the driver, where CUDA may not be
  // called. REQUIRES: captured().
  Status KeepInGraph(std::shared_ptr<const void> what) const {
    return KeepIn(entered_->graph, std::move(what));
  }
  Status Copy(void* to, const void* from, size_t bytes, cuda::Stream stream) const;
  Status Copy(const CopyPiece& piece, cuda::Stream stream) const {
    return Copy(piece.to, piece.from, piece.bytes, stream);
  }
  // Checks the tasks of a group, before any task is queued, for mistakes that a caller can make on
  // this rank alone: memory that this GPU does not reach, pointers that are no streams, messages of
  // the rank to itself that do not meet. (OrderBehindLast checks the first task's stream.)
  Status CheckTasks(std::span<const IssuedTask> tasks) const;

 private:
  GpuQueue(const cuda::Device& device, int rank, int num_ranks, const Settings& settings)
      : device_(device),
        rank_(rank),
        mixes_graphs_(settings.graph_mixing),
        pointers_(device, rank, num_ranks, settings.check_pointers) {}
  // Identifies a stream, also among earlier streams with the same address.
  struct Place {
    cuda::Stream stream = nullptr;
    std::optional<uint64_t> id = std::nullopt;  // None where the driver cannot say.
    bool captured = false;
    uint64_t capture = 0;  // The number of the capture.
    cuda::Graph graph = nullptr;
  };
  // Holds the place of the last launch of a kind, and the event behind the launch.
  struct Last {
    std::optional<Place> place;
    cuda::OwnEvent event;
  };
  Result<Place> Look(cuda::Stream stream) const;
  Status HoldUp(std::span<const IssuedTask> tasks);
  // Records the event behind everything launched since OrderBehindLast.
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
  // Captured operations have a separate order, because they run when their graph is launched.
  Last launched_;
  Last captured_;
  // The node of the last graph that records the event of launches.
  struct Mark {
    uint64_t capture = 0;
    cuda::GraphNode node = nullptr;
    std::vector<cuda::GraphNode> behind = {};  // The nodes that the node comes after.
  };
  Mark mark_;
  std::optional<Place> entered_;  // The stream in use between OrderBehindLast and Leave.
  bool begun_ = false;            // Something was launched since the last Leave.
  // True once an event could not be recorded behind a launch.
  std::atomic<bool> lost_track_ = false;
  // Every graph with operations holds a reference. The count therefore tells whether graphs exist.
  std::shared_ptr<const int> graphs_ = std::make_shared<int>(0);
};

}  // namespace tutti
