#pragma once

// The operations of a group, and how they are launched.
//
// The operations of each communicator become one batch with one ticket.
//   - Batches of communicators whose operations are queued on device streams (HandOver::kOnStream)
//     are handed over at once, on the calling thread, which waits for nobody.
//   - Every batch of a host communicator runs where the streams of its operations say: on a host
//     stream; for the null stream on the calling thread, or on the communicator's worker where the
//     communicator is non-blocking.
//   - All batches of the calling thread run at the same time, and batches that share a stream do as
//     well, so that one thread can drive many ranks.
//
// A batch whose operations name several host streams waits until all of these streams get to the
// batch, and later work on any of the streams waits for the batch (fence.h). Every wait is for work
// that was queued before the waiter, so waits of different groups make no circle.
//
// An OperationGroup belongs to one thread.

#include <utility>
#include <vector>

#include "backend/host/stream.h"
#include "base/status.h"
#include "comm/handle.h"
#include "comm/turn.h"
#include "operations/operations.h"

namespace tutti {

// The operations of one communicator in a group.
struct OperationBatch {
  ncclComm* comm = nullptr;
  std::vector<IssuedTask> tasks = {};
  // The streams of the operations. The worker stands for the null stream of a non-blocking
  // communicator.
  std::vector<HostStream*> streams = {};
  bool on_caller = false;  // An operation names the null stream of a blocking communicator.
  bool on_worker = false;  // An operation names the null stream of a non-blocking communicator.
  Turn turn = {};          // Taken when the batch is launched.
};

// The operations of a whole group, in batches. `uses` keeps the handles from being freed.
struct OperationBatches {
  std::vector<HandleUse> uses = {};
  std::vector<OperationBatch> batches = {};
};

class OperationGroup {
 public:
  bool empty() const { return entries_.empty(); }
  void Clear() { entries_.clear(); }
  void Add(ncclComm& comm, IssuedTask issued) { entries_.push_back({&comm, std::move(issued)}); }
  // Returns the predicted time of all operations in microseconds.
  double PredictUs() const;

  // Takes all operations out, in one batch for each communicator. The batches stand in the order in
  // which the group first names the communicators. Fails where a communicator was destroyed.
  Result<OperationBatches> Take();
  // Returns why an operation cannot be issued. Nothing is launched.
  static Status Check(const OperationBatches& taken);
  // Launches all batches and returns the first failure, else InProgress when a batch goes on in the
  // background. All batches are launched in spite of failures, because the ranks of a further
  // communicator would wait for its batch.
  static Status Launch(OperationBatches taken);
  // Launches one operation outside of a group.
  Status LaunchAlone(ncclComm& comm, IssuedTask issued);

 private:
  struct Entry {
    ncclComm* comm;
    IssuedTask issued;
  };
  std::vector<Entry> entries_;
};

}  // namespace tutti
