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
#include "comm/turn.h"
#include "operations/operations.h"

namespace tutti {

class Group {
 public:
  void Start() { ++depth_; }
  // Ends one level; launches when it was the outermost. InvalidUsage without a Start. Returns
  // InProgress when something goes on in the background.
  Status End();

  bool active() const { return depth_ > 0; }
  // Notes that a call inside the group failed, which makes the whole group fail with its reason.
  void NoteError(const Status& status) {
    if (error_.ok()) error_ = status;
  }

  // REQUIRES, of the three functions that add: the caller is inside of the handles' gates.
  //
  // Notes the task inside a group. Outside of one, runs it or hands it over; with the null stream
  // of a rank on a host it is done on return.
  Status Add(ncclComm& comm, IssuedTask issued);
  // Notes or runs `job`, which blocks until its communicator is there and stores it in the handle.
  // `parent` (may be null) is what it is made from; it is at work from the launch on.
  Status AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> job);
  // Notes or runs `job`, which blocks until all ranks of a communicator that is there have done the
  // same.
  Status AddJoint(ncclComm& comm, std::function<Status()> job);

  // Returns the predicted time of what the group holds, in microseconds. Ends one level; when it
  // was the outermost, drops what the group holds. Initialisations cannot be predicted: where the
  // group holds any, they fail, and so does the call, with InvalidUsage.
  Result<double> Simulate();

 private:
  struct Entry {
    ncclComm* comm;
    IssuedTask issued;
  };
  // The operations of one communicator in the group.
  struct Batch {
    ncclComm* comm = nullptr;
    std::vector<IssuedTask> tasks = {};
    // The streams that the operations were issued on; for a non-blocking communicator its worker,
    // where they were issued on the null stream.
    std::vector<HostStream*> streams = {};
    bool on_caller = false;  // Some of them were issued on the null stream of a blocking one.
    bool on_worker = false;  // Some of them were issued on that of a non-blocking one.
    Turn turn = {};          // It is taken when the batch is launched.
  };
  // Batches that share streams, and therefore start together.
  struct Launch {
    std::vector<Batch> batches;
    std::vector<HostStream*> streams;
    bool on_caller = false;
  };
  // Keeps the communicators of an initialisation at work, and lets an abort of the parent reach the
  // child.
  class InitHold {
   public:
    InitHold(ncclComm& comm, ncclComm* parent, bool makes);
    InitHold(const InitHold&) = delete;
    InitHold& operator=(const InitHold&) = delete;
    ~InitHold();

   private:
    ncclComm& comm_;
    ncclComm* const parent_;
    const bool is_joint_;
    ncclComm::WorkHold hold_;
    ncclComm::WorkHold parent_hold_;
  };
  // An initialisation, or another call that all ranks of a communicator make together.
  struct InitJob {
    ncclComm* comm;
    ncclComm* parent;  // The communicator is made from it. May be null.
    std::function<Status()> run;
    bool makes = true;  // The job makes the communicator, which is nothing where the job fails.
    std::unique_ptr<InitHold> hold = nullptr;  // It is held from BeginInit to the end of RunInit.
  };
  Status AddJob(InitJob job);

  static Status RunNow(ncclComm& comm, std::span<const IssuedTask> tasks);
  static Status RunBatch(Batch& batch);
  static Status RunTogether(std::span<Batch> batches);
  static std::shared_ptr<Fence> MakeFence(Launch& launch, size_t streams);
  static void Queue(Launch launch);
  static void HoldStreams(Launch& launch);
  static void Begin(std::span<Launch> launches);
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

// Returns the calling thread's group.
Group& ThreadGroup();

}  // namespace tutti
