#pragma once

// Groups: the calls of a thread between ncclGroupStart and ncclGroupEnd.
//
// A group has two parts, which the end of the outermost group launches in this order: joint calls
// of all ranks, such as the making of communicators (init_group.h), and operations. Nothing is
// launched before all of the group has been checked.
//
// The operations of each communicator become one batch with one ticket.
//   - Batches of communicators whose operations are queued on device streams (HandOver::kOnStream)
//     are handed over at once, on the calling thread, which waits for nobody.
//   - Every batch of a host communicator runs where the streams of its operations say: on a host
//     stream; for the null stream on the calling thread, or on the communicator's worker where the
//     communicator is non-blocking.
//   - All batches of the calling thread run at the same time, and so do batches that share a stream:
//     the calling thread can drive many ranks.
//
// A batch whose operations name several host streams waits until all of these streams get to the
// batch, and later work on any of the streams waits for the batch (fence.h). Every wait is for work
// that was queued before the waiter, so waits of different groups make no circle.
//
// A Group belongs to one thread.

#include <functional>
#include <vector>

#include "base/status.h"
#include "comm/handle.h"
#include "comm/init_group.h"
#include "operations/operations.h"

namespace tutti {

struct OperationBatches;

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
  Status AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> job,
                 std::function<void(const Status&)> refused = {});
  // Notes or runs `job`, which blocks until all ranks of an existing communicator have made the
  // same call.
  Status AddJoint(ncclComm& comm, std::function<Status()> job);

  // Ends one level and returns the predicted time of the group in microseconds. Drops the group
  // when the level was the outermost. Initialisations cannot be predicted: a group with
  // initialisations fails with InvalidUsage, as the initialisations do.
  Result<double> Simulate();

 private:
  struct Operation {
    ncclComm* comm;
    IssuedTask issued;
  };

  Status AddJob(InitJob job);
  // Takes the operations of the group, or returns why the group is refused.
  Status Take(OperationBatches& batches);
  // Takes all operations out, in one batch for each communicator. The batches stand in the order in
  // which the group first names the communicators. Fails where a communicator was destroyed.
  Result<OperationBatches> TakeOperations();
  // Returns the predicted time of all operations in microseconds.
  double PredictUs() const;

  int depth_ = 0;
  Status error_;
  InitGroup inits_;
  std::vector<Operation> operations_;
};

// Returns the calling thread's group.
Group& ThreadGroup();

}  // namespace tutti
