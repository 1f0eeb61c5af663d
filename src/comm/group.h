#pragma once

// Groups: what a thread collects between ncclGroupStart and ncclGroupEnd, and how it is launched.
//
// At the end of the outermost group
//   - initialisations run at once, each on a thread of its own (they need one another); but what is
//     made from one communicator, or done by all its ranks together, in the order of the calls,
//     since the ranks talk over one bootstrap;
//   - the operations of each communicator become one batch, with one ticket;
//   - batches run where their operations' streams say: on the host stream, on the calling thread
//     for the null stream, or on the communicator's lane for the null stream of a non-blocking one.
//     All batches of the calling thread run at the same time, and so do those that share a stream,
//     so that one thread can drive many ranks.
//
// A batch whose operations name several streams waits until all of them get to it, and what comes
// later on any of them waits for it:
//
//   first stream   … earlier work | wait for `reached` | batch | later work …
//   other streams  … earlier work | count `reached`    | wait for `done` | later work …
//
// Every wait is for something that was put into a queue before it, so waits of different groups
// make no circle.
//
// A Group belongs to one thread.

#include <functional>
#include <latch>
#include <memory>
#include <span>
#include <vector>

#include "backend/host/stream.h"
#include "base/status.h"
#include "comm/handle.h"
#include "plan/task.h"

namespace tutti {

class Group {
 public:
  void Start() { ++depth_; }
  // Ends one level; launches when it was the outermost. InvalidUsage without a Start. Returns
  // InProgress when something goes on in the background.
  Status End();

  bool active() const { return depth_ > 0; }
  // A failed call inside a group makes the whole group fail, with its reason.
  void NoteError(const Status& status) {
    if (error_.ok()) error_ = status;
  }

  // REQUIRES, of the four functions that add: the caller is inside of the handles' gates.
  //
  // Inside a group: notes it. Outside: runs it. `stream` null: done on return.
  Status Add(ncclComm& comm, const Task& task, HostStream* stream);
  // The same for a communicator whose rank is a GPU; `stream` is its cudaStream_t. Launching waits
  // for nobody, so it happens on the calling thread.
  Status AddOnDevice(ncclComm& comm, const Task& task, void* stream);
  // `job` blocks until its communicator is there and stores it in the handle. `parent` (may be
  // null) is what it is made from; it is at work from the launch on.
  Status AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> job);

  // `job` blocks until all ranks of a communicator that is there have done the same.
  Status AddJoint(ncclComm& comm, std::function<Status()> job);

  // The predicted time of what the group holds, in microseconds. Ends one level; drops what the
  // group holds when it was the outermost, and is then InvalidUsage where these are
  // initialisations, which fail.
  Result<double> Simulate();

 private:
  struct Entry {
    ncclComm* comm;
    Task task;
    HostStream* stream;
  };
  struct DeviceEntry {
    ncclComm* comm;
    DeviceTask entry;
  };
  struct Fence {
    Fence(size_t streams, size_t batches)
        : reached(static_cast<ptrdiff_t>(streams)), done(static_cast<ptrdiff_t>(batches)) {}
    std::latch reached;
    std::latch done;
  };
  struct Batch {
    ncclComm* comm = nullptr;
    std::vector<Task> tasks = {};
    std::vector<HostStream*> streams = {};  // the communicator's lane may be among them
    bool on_caller = false;
    bool on_lane = false;
    uint64_t ticket = 0;
    std::shared_ptr<Fence> fence = nullptr;  // null: no stream to wait for
  };
  // Batches that share streams.
  struct Launch {
    std::vector<Batch> batches;
    std::vector<HostStream*> streams;
    bool on_caller = false;
  };
  struct InitJob {
    ncclComm* comm;
    ncclComm* parent;
    std::function<Status()> run;
    bool makes = true;  // the communicator, which is nothing where it fails
  };
  Status Add(InitJob job);

  static Status RunNow(ncclComm& comm, std::span<const Task> tasks);
  static ncclComm::Shown ShownAs(const Batch& batch);
  static Status RunBatch(const Batch& batch);
  static Status RunTogether(std::span<const Batch> batches);
  static void Queue(Launch launch);
  static void HoldStreams(Launch& launch);
  static void BeginInit(const InitJob& job);
  using InitChain = std::vector<InitJob>;
  static Status RunInit(const InitJob& job);
  static Status RunChain(const InitChain& chain);
  static void QueueInits(InitChain chain);
  static ncclComm& Over(const InitJob& job);
  static std::vector<InitChain> MakeChains(InitChain inits);
  void DropInits(const Status& reason);
  Status LaunchInits();
  Status LaunchOperations();
  Status LaunchOnDevices();
  static Status LaunchOn(ncclComm& comm, std::span<const DeviceTask> tasks);
  Result<std::vector<Batch>> MakeBatches(std::vector<HandleUse>& uses);
  static std::vector<Launch> MakeLaunches(std::vector<Batch> batches);

  int depth_ = 0;
  Status error_;
  std::vector<Entry> entries_;
  std::vector<DeviceEntry> device_entries_;
  std::vector<InitJob> inits_;
};

// The calling thread's group.
Group& ThreadGroup();

}  // namespace tutti
