#include "comm/group.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include "backend/host/stream.h"
#include "base/exceptions.h"
#include "base/log.h"
#include "comm/aside.h"
#include "comm/fence.h"
#include "comm/group_status.h"
#include "comm/turn.h"

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

namespace {

using Batch = OperationBatch;
using Shown = ncclComm::Shown;

// Batches that share streams, and therefore start together.
struct Joined {
  std::vector<Batch> batches = {};
  std::vector<HostStream*> streams = {};
  bool on_caller = false;
};

// Returns whether tasks of the communicator are queued on device streams by the issuing thread.
bool IsHandedOver(const ncclComm& comm) {
  return comm.comm->operations().hand_over() == HandOver::kOnStream;
}

template <class T>
void AddOnce(std::vector<T>& list, const T& item) {
  if (std::find(list.begin(), list.end(), item) == list.end()) list.push_back(item);
}

template <class T>
bool Overlap(const std::vector<T>& a, const std::vector<T>& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

Status RunNow(ncclComm& comm, std::span<const IssuedTask> tasks) {
  if (IsHandedOver(comm) && comm.joint_jobs.load(std::memory_order_acquire) > 0)
    return InvalidUsage(
        "a call that all ranks make together (ncclCommWindowRegister, ncclCommSuspend or "
        "ncclCommResume) is still under way: poll ncclCommGetAsyncError until it "
        "is no longer ncclInProgress");
  comm.ForgetOperationError();
  const log::ThreadRankMark mark(comm.comm->rank());
  Operations& operations = comm.comm->operations();
  Status status = operations.Run(operations.TakeTicket(), tasks);
  if (!status.ok()) [[unlikely]]
    comm.NoteFailure(status, /*in_background=*/false);
  return status;
}

// Runs a batch whose turn has been taken. Failures of the batch are kept in its handle and on its
// streams.
Status RunBatch(Batch& batch) {
  ncclComm& comm = *batch.comm;
  Turn turn = std::move(batch.turn);
  const log::ThreadRankMark mark(comm.comm->rank());
  Status status = turn.Run(batch.tasks);
  if (!status.ok()) {
    comm.NoteFailure(status, /*in_background=*/batch.on_worker);
    for (HostStream* stream : batch.streams) stream->NoteError(status);
  }
  return status;
}

// Holds the batches that start together, shared with their threads. A thread that does not end in
// time keeps the object alive.
struct Together {
  explicit Together(std::vector<Batch> all)
      : batches(std::move(all)), outcomes(batches.size() - 1, [this](size_t i) {
          return batches[i + 1].comm->comm->watch().stopped();
        }) {
    // A batch's turn keeps the handle until the batch has run. The outcome is stored afterwards, so
    // that the handle needs a hold until then.
    for (Batch& batch : batches) holds.emplace_back(*batch.comm, Shown::kNo);
  }

  Status Run(size_t number) {
    return WithoutExceptions([&] { return RunBatch(batches[number]); });
  }
  void NoteEnd(size_t number, Status outcome) {
    outcomes.Set(number - 1, std::move(outcome));
    holds[number] = {};
  }

  std::vector<Batch> batches;
  std::vector<ncclComm::WorkHold> holds;
  AsideOutcomes outcomes;
};

// Runs the first batch on the calling thread and the others on threads beside it. Returns the first
// failure.
Status RunTogether(std::vector<Batch> batches) {
  if (batches.size() == 1) return WithoutExceptions([&] { return RunBatch(batches[0]); });
  const auto together = std::make_shared<Together>(std::move(batches));
  for (size_t i = 1; i < together->batches.size(); ++i) {
    ncclComm& comm = *together->batches[i].comm;
    const Status started = WithoutExceptions([&] {
      comm.RunAside([together, i] { together->NoteEnd(i, together->Run(i)); });
      return Status::Ok();
    });
    if (started.ok()) continue;
    // No memory is left to run the batch elsewhere. The batch's ticket must be run all the same,
    // and runs here: a communicator that has stopped waits for nothing.
    together->NoteEnd(i, WithoutExceptions([&] {
                        comm.comm->Stop(started, /*tell=*/true);
                        return RunBatch(together->batches[i]);
                      }));
  }
  Status first = together->Run(0);
  together->holds[0] = {};
  Status other = together->outcomes.Await();
  return first.ok() ? other : first;
}

// Makes the batches of `joined` wait at a fence for `streams` streams.
std::shared_ptr<Fence> MakeFence(Joined& joined, size_t streams) {
  std::vector<ncclComm*> comms;
  for (const Batch& batch : joined.batches) comms.push_back(batch.comm);
  auto fence = std::make_shared<Fence>(streams, std::move(comms));
  for (size_t i = 0; i < joined.batches.size(); ++i) joined.batches[i].turn.WaitAt(fence, i);
  return fence;
}

void Queue(Joined joined) {
  HostStream& first = *joined.streams[0];
  const std::vector<HostStream*> others(joined.streams.begin() + 1, joined.streams.end());
  std::shared_ptr<Fence> fence;
  if (!others.empty()) fence = MakeFence(joined, others.size());
  for (HostStream* other : others) other->Enqueue([fence] { fence->NoteReached(); });
  const auto batches = std::make_shared<std::vector<Batch>>(std::move(joined.batches));
  first.Enqueue(
      [batches] { [[maybe_unused]] const Status kept = RunTogether(std::move(*batches)); });
  for (HostStream* other : others) other->Enqueue([fence] { fence->AwaitDone(); });
}

// Makes the streams of batches that the calling thread is about to run wait for the batches.
void HoldStreams(Joined& joined) {
  const std::shared_ptr<Fence> fence = MakeFence(joined, joined.streams.size());
  for (HostStream* stream : joined.streams) {
    // A host function that calls the library runs on its stream's thread: the stream has got here.
    if (stream->OnOwnThread()) {
      fence->NoteReached();
      continue;
    }
    stream->Enqueue([fence, caller = std::this_thread::get_id()] {
      fence->NoteReached();
      // A stream without a thread of its own runs this on the caller, which runs the batches next.
      if (std::this_thread::get_id() != caller) fence->AwaitDone();
    });
  }
}

std::vector<Joined> JoinByStreams(std::vector<Batch> batches) {
  std::vector<Joined> all;
  for (Batch& batch : batches) {
    Joined joint = {.streams = batch.streams, .on_caller = batch.on_caller};
    joint.batches.push_back(std::move(batch));
    // The batch may share streams with several sets of batches, which become one set.
    std::vector<Joined> apart;
    for (Joined& joined : all) {
      if (!Overlap(joined.streams, joint.streams)) {
        apart.push_back(std::move(joined));
        continue;
      }
      for (HostStream* stream : joined.streams) AddOnce(joint.streams, stream);
      std::move(joined.batches.begin(), joined.batches.end(), std::back_inserter(joint.batches));
      joint.on_caller |= joined.on_caller;
    }
    apart.push_back(std::move(joint));
    all = std::move(apart);
  }
  return all;
}

// Takes for each batch its place in the order of its communicator's operations.
void TakeTurns(std::span<Joined> all) {
  for (Joined& joined : all) {
    for (Batch& batch : joined.batches) {
      batch.comm->ForgetOperationError();
      batch.turn = Turn(*batch.comm, batch.on_worker ? Shown::kInProgress : Shown::kNo);
    }
  }
}

Status LaunchOnHost(std::vector<Batch> batches) {
  const bool in_progress = std::any_of(batches.begin(), batches.end(),
                                       [](const Batch& batch) { return batch.on_worker; });
  std::vector<Batch> now;
  now.reserve(batches.size());
  std::vector<Joined> all = JoinByStreams(std::move(batches));
  TakeTurns(all);
  for (Joined& joined : all) {
    if (!joined.on_caller) {
      Queue(std::move(joined));
      continue;
    }
    if (!joined.streams.empty()) HoldStreams(joined);
    std::move(joined.batches.begin(), joined.batches.end(), std::back_inserter(now));
  }
  if (!now.empty()) TUTTI_TRY(RunTogether(std::move(now)));
  return in_progress ? InBackground() : Status::Ok();
}

// Returns why an operation cannot be issued. Nothing is launched.
Status Check(const OperationBatches& taken) {
  const std::vector<Batch>& batches = taken.batches;
  // A single batch needs no check here, because the hand-over of the batch checks the tasks.
  if (batches.size() == 1 && IsHandedOver(*batches[0].comm)) return Status::Ok();
  for (const Batch& batch : batches)
    TUTTI_TRY(batch.comm->comm->operations().CheckTasks(batch.tasks));
  return Status::Ok();
}

// Launches all batches and returns the first failure, else InProgress when a batch goes on in the
// background. All batches are launched in spite of failures, because the ranks of a further
// communicator would wait for its batch.
Status Launch(OperationBatches taken) {
  std::vector<Batch>& batches = taken.batches;
  if (batches.empty()) return Status::Ok();
  const auto on_host = std::stable_partition(
      batches.begin(), batches.end(), [](const Batch& batch) { return IsHandedOver(*batch.comm); });
  Status first;
  for (auto batch = batches.begin(); batch != on_host; ++batch)
    if (Status handed_over = RunNow(*batch->comm, batch->tasks); first.ok())
      first = std::move(handed_over);
  batches.erase(batches.begin(), on_host);
  Status launched = LaunchOnHost(std::move(batches));
  return first.ok() ? launched : first;
}

}  // namespace

Group& ThreadGroup() {
  thread_local Group group;
  return group;
}

Status Group::End() {
  if (depth_ == 0) return InvalidUsage("ncclGroupEnd without ncclGroupStart on this thread");
  if (--depth_ > 0) return Status::Ok();
  OperationBatches batches;
  if (Status error = Take(batches); !error.ok()) {
    operations_.clear();
    inits_.Drop(error);
    return error;
  }
  Status inits = inits_.Launch();
  if (!inits.ok() && inits.code() != Code::kInProgress) return inits;
  Status launched = Launch(std::move(batches));
  return launched.ok() ? inits : launched;
}

// Refuses a group with both operations and the making of communicators, because the operations
// could not be refused any more once communicators are made.
Status Group::Take(OperationBatches& batches) {
  TUTTI_TRY(std::exchange(error_, Status::Ok()));
  if (inits_.makes() && !operations_.empty())
    return InvalidUsage(
        "a group holds operations, or the making of communicators, not both: end the group that "
        "makes them first");
  TUTTI_ASSIGN(batches, TakeOperations());
  return Check(batches);
}

Status Group::AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> job,
                      std::function<void(const Status&)> refused) {
  return AddJob({&comm, parent, std::move(job), std::move(refused)});
}

Status Group::AddJoint(ncclComm& comm, std::function<Status()> job) {
  return AddJob({&comm, nullptr, std::move(job), {}, /*makes=*/false});
}

Status Group::AddJob(InitJob job) {
  if (!active()) return InitGroup::LaunchAlone(std::move(job));
  inits_.Add(std::move(job));
  return Status::Ok();
}

Status Group::Add(ncclComm& comm, IssuedTask issued) {
  if (!active() && (IsHandedOver(comm) || (issued.stream == nullptr && comm.blocking)))
    return RunNow(comm, std::span(&issued, 1));
  operations_.push_back({&comm, std::move(issued)});
  if (active()) return Status::Ok();
  TUTTI_ASSIGN(OperationBatches taken, TakeOperations());
  return Launch(std::move(taken));
}

Result<OperationBatches> Group::TakeOperations() {
  OperationBatches taken;
  for (Operation& operation : std::exchange(operations_, {})) {
    ncclComm& comm = *operation.comm;
    taken.uses.emplace_back(&comm);
    if (!taken.uses.back().inside() || !comm.comm) return DestroyedInGroup();
    auto batch = std::find_if(taken.batches.begin(), taken.batches.end(),
                              [&](const Batch& b) { return b.comm == &comm; });
    if (batch == taken.batches.end())
      batch = taken.batches.insert(taken.batches.end(), Batch{.comm = &comm});
    batch->tasks.push_back(std::move(operation.issued));
    if (IsHandedOver(comm)) continue;
    if (void* const stream = batch->tasks.back().stream; stream != nullptr) {
      AddOnce(batch->streams, static_cast<HostStream*>(stream));
    } else if (comm.blocking) {
      batch->on_caller = true;
    } else {
      batch->on_worker = true;
      AddOnce(batch->streams, &comm.worker());
    }
  }
  return taken;
}

double Group::PredictUs() const {
  double us = 0;
  for (const Operation& operation : operations_)
    if (const HandleUse use(operation.comm); use.inside() && operation.comm->comm)
      us += operation.comm->comm->operations().PredictUs(operation.issued.task);
  return us;
}

Result<double> Group::Simulate() {
  if (depth_ == 0)
    return InvalidUsage("ncclGroupSimulateEnd without ncclGroupStart on this thread");
  const double us = PredictUs();
  if (--depth_ > 0) return us;
  operations_.clear();
  if (!inits_.empty())
    NoteError(InvalidUsage(
        "ncclGroupSimulateEnd predicts operations, but its group makes or splits communicators"));
  if (Status error = std::exchange(error_, Status::Ok()); !error.ok()) {
    inits_.Drop(error);
    return error;
  }
  return us;
}

}  // namespace tutti
