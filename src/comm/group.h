#pragma once

// Groups: what a thread collects between ncclGroupStart and ncclGroupEnd, and how it is launched.
//
// At the end of the outermost group
//   - initialisations run at once, each on a thread of its own (they need one another);
//   - the operations of each communicator become one batch, with one ticket;
//   - a batch on a host stream, or of a non-blocking communicator, is queued; of the others the
//   first runs on the
//     calling thread and the rest on their lanes, so that one thread can drive many ranks.
//
// A Group belongs to one thread.

#include <functional>
#include <vector>

#include "backend/host/stream.h"
#include "base/status.h"
#include "comm/handle.h"
#include "comm/task.h"

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

  // Inside a group: notes it. Outside: runs it. `stream` null: done on return.
  Status Add(ncclComm& comm, const Task& task, HostStream* stream);
  // `job` blocks until its communicator is there and stores it in the handle.
  Status AddInit(ncclComm& comm, std::function<Status()> job);

  // The predicted time of what the group holds, in microseconds; empties and ends the group.
  Result<double> Simulate();

 private:
  struct Entry {
    ncclComm* comm;
    Task task;
    HostStream* stream;
  };
  struct Batch {
    ncclComm* comm;
    std::vector<Task> tasks;
    HostStream* stream;
    std::vector<HostStream*> other_streams;
    uint64_t ticket = 0;
  };
  struct InitJob {
    ncclComm* comm;
    std::function<Status()> run;
  };

  static Status RunNow(ncclComm& comm, std::span<const Task> tasks);
  static void Queue(Batch batch, HostStream& stream);
  Status LaunchInits();
  Status LaunchOperations();
  std::vector<Batch> MakeBatches();
  Status RunBatches(std::vector<Batch> batches);

  int depth_ = 0;
  Status error_;
  std::vector<Entry> entries_;
  std::vector<InitJob> inits_;
};

// The calling thread's group.
Group& ThreadGroup();

}  // namespace tutti
