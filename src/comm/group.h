#pragma once

// Groups: what a thread collects between ncclGroupStart and ncclGroupEnd, and how it is launched.
//
// At the end of the outermost group
//   - initialisations run at once, each on a thread of its own (they need one another); but what is
//     made from one communicator, or done by all its ranks together, in the order of the calls,
//     since the ranks talk over one bootstrap;
//   - the operations of each communicator become one batch, with one ticket;
//   - batches of communicators whose operations are queued on device streams (HandOver::kOnStream)
//     are handed over at once, on the calling thread, which waits for nobody;
//   - the others run where their operations' streams say: on the host stream, on the calling thread
//     for the null stream, or on the communicator's worker for the null stream of a non-blocking
//     one. All batches of the calling thread run at the same time, and so do those that share a
//     stream, so that one thread can drive many ranks.
//
// A batch whose operations name several host streams waits until all of them get to it, and what
// comes later on any of them waits for it (fence.h). Every wait is for something that was put into
// a queue before it, so waits of different groups make no circle.
//
// A Group belongs to one thread.

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/host/stream.h"
#include "base/status.h"
#include "comm/fence.h"
#include "comm/handle.h"
#include "operations/operations.h"

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

  // REQUIRES, of the three functions that add: the caller is inside of the handles' gates.
  //
  // Notes the task, inside a group. Outside of one, runs it or hands it over; with the null stream
  // of a rank on a host it is done on return.
  Status Add(ncclComm& comm, IssuedTask issued);
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
    IssuedTask issued;
  };
  // The operations of one communicator.
  struct Batch {
    ncclComm* comm = nullptr;
    std::vector<IssuedTask> tasks = {};
    std::vector<HostStream*> streams = {};  // the communicator's worker may be among them
    bool on_caller = false;
    bool on_worker = false;
    ncclComm::WorkHold hold = {};
    uint64_t ticket = 0;
    std::shared_ptr<Fence> fence = nullptr;  // null: no stream to wait for
    size_t number = 0;                       // at the fence
  };
  struct BatchEnd;
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
    bool makes = true;             // the communicator, which is nothing where it fails
    ncclComm::WorkHold hold = {};  // from BeginInit to the end of RunInit
    ncclComm::WorkHold parent_hold = {};
  };
  Status AddJob(InitJob job);

  static Status RunNow(ncclComm& comm, std::span<const IssuedTask> tasks);
  static Status RunBatch(Batch& batch);
  static Status RunTogether(std::span<Batch> batches);
  static std::shared_ptr<Fence> MakeFence(Launch& launch, size_t streams);
  static void Queue(Launch launch);
  static void HoldStreams(Launch& launch);
  static void Begin(std::span<Batch> batches);
  static void BeginInit(InitJob& job);
  using InitChain = std::vector<InitJob>;
  static Status RunInit(InitJob& job);
  static Status RunChain(InitChain& chain);
  static void QueueInits(InitChain chain);
  static ncclComm& Over(const InitJob& job);
  static std::vector<InitChain> MakeChains(InitChain inits);
  void DropInits(const Status& reason);
  Status LaunchInits();
  Status TakeBatches(std::vector<HandleUse>& uses, std::vector<Batch>& batches);
  Status CheckMixture() const;
  Result<std::vector<Batch>> MakeBatches(std::vector<HandleUse>& uses);
  static Status CheckBatches(std::span<const Batch> batches);
  static Status LaunchOperations(std::vector<Batch> batches);
  static Status LaunchBatches(std::vector<Batch> batches);
  static std::vector<Launch> MakeLaunches(std::vector<Batch> batches);

  int depth_ = 0;
  Status error_;
  std::vector<Entry> entries_;
  std::vector<InitJob> inits_;
};

// The calling thread's group.
Group& ThreadGroup();

}  // namespace tutti
