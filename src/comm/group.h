#pragma once

// Groups: the calls of a thread between ncclGroupStart and ncclGroupEnd.
//
// A group has two parts, which the end of the outermost group launches in this order: joint calls
// of all ranks, such as the making of communicators (init_group.h), and operations
// (operation_group.h). Nothing is launched before all of the group has been checked.
//
// A Group belongs to one thread.

#include <functional>

#include "base/status.h"
#include "comm/init_group.h"
#include "comm/operation_group.h"

namespace tutti {

class Group {
 public:
  void Start() { ++depth_; }
  // Ends one level and launches the group when the level was the outermost. Returns InvalidUsage
  // without a Start, and InProgress when something goes on in the background.
  Status End();

  bool active() const { return depth_ > 0; }
  // Notes the failure of a call inside the group. The whole group then fails with the call's
  // reason.
  void NoteError(const Status& status) {
    if (error_.ok()) error_ = status;
  }

  // REQUIRES, of the three functions that add: the caller is inside of the handles' gates.
  //
  // Notes the task inside a group. Outside of a group, runs the task or hands the task over; a task
  // on the null stream of a host rank is done on return.
  Status Add(ncclComm& comm, IssuedTask issued);
  // Notes or runs `job`, which blocks until its communicator exists and stores the communicator in
  // the handle. `parent`, which may be null, is the communicator from which the new communicator is
  // made. The parent counts as at work from the launch on.
  Status AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> job);
  // Notes or runs `job`, which blocks until all ranks of an existing communicator have made the
  // same call.
  Status AddJoint(ncclComm& comm, std::function<Status()> job);

  // Ends one level and returns the predicted time of the group in microseconds. Drops the group
  // when the level was the outermost. Initialisations cannot be predicted: a group with
  // initialisations fails with InvalidUsage, as the initialisations do.
  Result<double> Simulate();

 private:
  Status AddJob(InitJob job);
  Status Take(OperationBatches& batches);

  int depth_ = 0;
  Status error_;
  InitGroup inits_;
  OperationGroup operations_;
};

// Returns the calling thread's group.
Group& ThreadGroup();

}  // namespace tutti
