#include "comm/group.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "base/mutex.h"
#include "sys/thread.h"

namespace tutti {
namespace {

using Shown = ncclComm::Shown;

Status InProgress() { return Status(Code::kInProgress, "the operation goes on in the background"); }

// Returns why a group is refused in which a handle was freed after it had been named.
Status Destroyed() {
  return InvalidUsage("a communicator was destroyed in the group that holds calls on it");
}

// Returns whether tasks of the communicator are queued on device streams by the thread that issues
// them.
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

}  // namespace

Group& ThreadGroup() {
  thread_local Group group;
  return group;
}

Status Group::End() {
  if (depth_ == 0) return InvalidUsage("ncclGroupEnd without ncclGroupStart on this thread");
  if (--depth_ > 0) return Status::Ok();
  std::vector<HandleUse> uses;
  std::vector<Batch> batches;
  if (Status error = TakeBatches(uses, batches); !error.ok()) {
    entries_.clear();
    DropInits(error);
    return error;
  }
  Status inits = LaunchInits();
  if (!inits.ok() && inits.code() != Code::kInProgress) return inits;
  Status launched = LaunchOperations(std::move(batches));
  return launched.ok() ? inits : launched;
}

// Takes what the group holds, in batches, or returns why the group is refused. Nothing of a group
// is issued before all of it has been checked.
Status Group::TakeBatches(std::vector<HandleUse>& uses, std::vector<Batch>& batches) {
  TUTTI_TRY(std::exchange(error_, Status::Ok()));
  TUTTI_TRY(CheckMixture());
  TUTTI_ASSIGN(batches, MakeBatches(uses));
  return CheckBatches(batches);
}

// Refuses a group that holds both operations and the making of communicators: once communicators
// are made, the operations could not be refused any more.
Status Group::CheckMixture() const {
  const bool makes =
      std::any_of(inits_.begin(), inits_.end(), [](const InitJob& init) { return init.makes; });
  if (!makes || entries_.empty()) return Status::Ok();
  return InvalidUsage(
      "a group holds operations, or the making of communicators, not both: end the group that "
      "makes them first");
}

// ---------------------------------------------------------------------------------------------------------------------
// Initialisations

void Group::DropInits(const Status& reason) {
  for (const InitJob& init : inits_)
    if (const HandleUse use(init.comm); init.makes && use.inside()) init.comm->Fail(reason);
  inits_.clear();
}

Group::InitHold::InitHold(ncclComm& comm, ncclComm* parent, bool makes)
    : comm_(comm), parent_(parent), is_joint_(!makes), hold_(comm, Shown::kInProgress) {
  if (parent_ != nullptr) parent_hold_ = parent_->BeginChild(comm_);
  if (is_joint_) comm_.joint_jobs.fetch_add(1, std::memory_order_relaxed);
}

Group::InitHold::~InitHold() {
  if (is_joint_) comm_.joint_jobs.fetch_sub(1, std::memory_order_release);
  if (parent_ != nullptr) parent_->ForgetChild(comm_);
  hold_ = {};
  // Last, because a thread that sees the parent at rest may use what the job has written.
  parent_hold_ = {};
}

void Group::BeginInit(InitJob& job) {
  job.hold = std::make_unique<InitHold>(*job.comm, job.parent, job.makes);
}

// Runs the job and keeps its outcome in the handle.
Status Group::RunInit(InitJob& job) {
  Status status = WithoutExceptions(job.run);
  if (!status.ok()) {
    if (job.makes)
      job.comm->Fail(status);
    else
      job.comm->NoteFailure(status, /*in_background=*/!job.comm->blocking);
  }
  job.hold.reset();
  return status;
}

// Runs the jobs in order and returns the first failure. Those after it run nevertheless, as they do
// on the other ranks.
Status Group::RunChain(InitChain& chain) {
  Status first;
  for (InitJob& job : chain)
    if (Status done = RunInit(job); first.ok()) first = std::move(done);
  return first;
}

void Group::QueueInits(InitChain chain) {
  ncclComm& over = Over(chain[0]);
  const auto jobs = std::make_shared<InitChain>(std::move(chain));
  over.joint_worker().Enqueue([jobs] { [[maybe_unused]] const Status kept = RunChain(*jobs); });
}

// Returns the communicator whose bootstrap the ranks talk over in the job.
ncclComm& Group::Over(const InitJob& job) {
  return job.parent != nullptr ? *job.parent : *job.comm;
}

Status Group::AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> run) {
  return AddJob({&comm, parent, std::move(run)});
}

Status Group::AddJoint(ncclComm& comm, std::function<Status()> run) {
  return AddJob({&comm, nullptr, std::move(run), /*makes=*/false});
}

Status Group::AddJob(InitJob job) {
  ncclComm& comm = *job.comm;
  if (active()) {
    inits_.push_back(std::move(job));
    return Status::Ok();
  }
  BeginInit(job);
  if (comm.blocking) return RunInit(job);
  InitChain alone;
  alone.push_back(std::move(job));
  QueueInits(std::move(alone));
  return InProgress();
}

// Puts the jobs that use one bootstrap into one chain, whose jobs run one after another in the
// order in which they were called.
std::vector<Group::InitChain> Group::MakeChains(InitChain inits) {
  std::vector<InitChain> chains;
  for (InitJob& init : inits) {
    auto chain = std::find_if(chains.begin(), chains.end(),
                              [&](const InitChain& c) { return &Over(c[0]) == &Over(init); });
    if (chain == chains.end()) chain = chains.insert(chains.end(), InitChain());
    chain->push_back(std::move(init));
  }
  return chains;
}

Status Group::LaunchInits() {
  std::vector<HandleUse> uses;
  for (const InitJob& init : inits_) {
    uses.emplace_back(init.comm);
    if (uses.back().inside() && init.parent != nullptr) uses.emplace_back(init.parent);
    if (uses.back().inside()) continue;
    Status reason = Destroyed();
    DropInits(reason);
    return reason;
  }
  std::vector<InitJob> inits = std::exchange(inits_, {});
  for (InitJob& init : inits) BeginInit(init);
  uses.clear();
  bool in_progress = false;
  std::vector<InitChain> chains = MakeChains(std::move(inits));
  std::vector<Status> outcomes(chains.size());
  std::vector<std::thread> threads;
  threads.reserve(chains.size());  // Nothing may throw while threads use this frame.
  for (size_t i = 0; i < chains.size(); ++i) {
    InitChain& chain = chains[i];
    if (std::none_of(chain.begin(), chain.end(),
                     [](const InitJob& job) { return job.comm->blocking; })) {
      in_progress = true;
      QueueInits(std::move(chain));
      continue;
    }
    Result<std::thread> started =
        StartThread("tutti-init", [&outcome = outcomes[i], &chain] { outcome = RunChain(chain); });
    if (started.ok()) {
      threads.push_back(std::move(started).value());
      continue;
    }
    for (InitJob& job : chain) job.run = [reason = started.status()] { return reason; };
    outcomes[i] = RunChain(chain);
  }
  for (std::thread& thread : threads) thread.join();
  for (Status& outcome : outcomes)
    if (!outcome.ok()) return std::move(outcome);
  return in_progress ? InProgress() : Status::Ok();
}

// ---------------------------------------------------------------------------------------------------------------------
// Operations

Status Group::Add(ncclComm& comm, IssuedTask issued) {
  const bool now = !active() && (IsHandedOver(comm) || (issued.stream == nullptr && comm.blocking));
  if (now) return RunNow(comm, std::span(&issued, 1));
  entries_.push_back({&comm, std::move(issued)});
  if (active()) return Status::Ok();
  std::vector<HandleUse> uses;
  TUTTI_ASSIGN(std::vector<Batch> batches, MakeBatches(uses));
  return LaunchOperations(std::move(batches));
}

Status Group::RunNow(ncclComm& comm, std::span<const IssuedTask> tasks) {
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

// Makes a batch for each communicator, in the order in which the group first names them. `uses`
// keeps their handles from being freed.
Result<std::vector<Group::Batch>> Group::MakeBatches(std::vector<HandleUse>& uses) {
  std::vector<Batch> batches;
  for (Entry& entry : std::exchange(entries_, {})) {
    ncclComm& comm = *entry.comm;
    uses.emplace_back(&comm);
    if (!uses.back().inside() || !comm.comm) return Destroyed();
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const Batch& b) { return b.comm == &comm; });
    if (batch == batches.end()) batch = batches.insert(batches.end(), Batch{.comm = &comm});
    batch->tasks.push_back(std::move(entry.issued));
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
  return batches;
}

Status Group::CheckBatches(std::span<const Batch> batches) {
  // The call that hands tasks over checks them too, which is enough for a batch that is alone.
  if (batches.size() == 1 && IsHandedOver(*batches[0].comm)) return Status::Ok();
  for (const Batch& batch : batches)
    TUTTI_TRY(batch.comm->comm->operations().CheckTasks(batch.tasks));
  return Status::Ok();
}

std::vector<Group::Launch> Group::MakeLaunches(std::vector<Batch> batches) {
  std::vector<Launch> launches;
  for (Batch& batch : batches) {
    Launch joint;
    joint.streams = batch.streams;
    joint.on_caller = batch.on_caller;
    joint.batches.push_back(std::move(batch));
    // The batch may share streams with several launches, which become one.
    std::vector<Launch> apart;
    for (Launch& launch : launches) {
      if (!Overlap(launch.streams, joint.streams)) {
        apart.push_back(std::move(launch));
        continue;
      }
      for (HostStream* stream : launch.streams) AddOnce(joint.streams, stream);
      std::move(launch.batches.begin(), launch.batches.end(), std::back_inserter(joint.batches));
      joint.on_caller |= launch.on_caller;
    }
    apart.push_back(std::move(joint));
    launches = std::move(apart);
  }
  return launches;
}

// Launches all batches and returns the first failure: a failure on one communicator must not leave
// the ranks of others waiting.
Status Group::LaunchOperations(std::vector<Batch> batches) {
  if (batches.empty()) return Status::Ok();
  const auto in_turn = std::stable_partition(
      batches.begin(), batches.end(), [](const Batch& batch) { return IsHandedOver(*batch.comm); });
  Status first;
  for (auto batch = batches.begin(); batch != in_turn; ++batch)
    if (Status handed_over = RunNow(*batch->comm, batch->tasks); first.ok())
      first = std::move(handed_over);
  batches.erase(batches.begin(), in_turn);
  Status launched = LaunchBatches(std::move(batches));
  return first.ok() ? launched : first;
}

// Takes for each batch its place in the order of its communicator's operations.
void Group::Begin(std::span<Launch> launches) {
  for (Launch& launch : launches) {
    for (Batch& batch : launch.batches) {
      batch.comm->ForgetOperationError();
      batch.turn = Turn(*batch.comm, batch.on_worker ? Shown::kInProgress : Shown::kNo);
    }
  }
}

Status Group::LaunchBatches(std::vector<Batch> batches) {
  const bool in_progress = std::any_of(batches.begin(), batches.end(),
                                       [](const Batch& batch) { return batch.on_worker; });
  std::vector<Batch> now;
  now.reserve(batches.size());
  std::vector<Launch> launches = MakeLaunches(std::move(batches));
  Begin(launches);
  for (Launch& launch : launches) {
    if (!launch.on_caller) {
      Queue(std::move(launch));
      continue;
    }
    if (!launch.streams.empty()) HoldStreams(launch);
    std::move(launch.batches.begin(), launch.batches.end(), std::back_inserter(now));
  }
  if (!now.empty()) TUTTI_TRY(RunTogether(now));
  return in_progress ? InProgress() : Status::Ok();
}

std::shared_ptr<Fence> Group::MakeFence(Launch& launch, size_t streams) {
  std::vector<ncclComm*> comms;
  for (const Batch& batch : launch.batches) comms.push_back(batch.comm);
  auto fence = std::make_shared<Fence>(streams, std::move(comms));
  for (size_t i = 0; i < launch.batches.size(); ++i) launch.batches[i].turn.WaitAt(fence, i);
  return fence;
}

void Group::Queue(Launch launch) {
  HostStream& first = *launch.streams[0];
  const std::vector<HostStream*> others(launch.streams.begin() + 1, launch.streams.end());
  std::shared_ptr<Fence> fence;
  if (!others.empty()) fence = MakeFence(launch, others.size());
  for (HostStream* other : others) other->Enqueue([fence] { fence->NoteReached(); });
  const auto batches = std::make_shared<std::vector<Batch>>(std::move(launch.batches));
  first.Enqueue([batches] { [[maybe_unused]] const Status kept = RunTogether(*batches); });
  for (HostStream* other : others) other->Enqueue([fence] { fence->AwaitDone(); });
}

// Makes the streams of a launch that the calling thread is about to run wait for it.
void Group::HoldStreams(Launch& launch) {
  const std::shared_ptr<Fence> fence = MakeFence(launch, launch.streams.size());
  for (HostStream* stream : launch.streams) {
    // A host function that calls the library runs on its stream's thread, so that the stream is
    // here.
    if (stream->OnOwnThread()) {
      fence->NoteReached();
      continue;
    }
    stream->Enqueue([fence, caller = std::this_thread::get_id()] {
      fence->NoteReached();
      // A stream without a thread of its own runs this here, where the batches come next.
      if (std::this_thread::get_id() != caller) fence->AwaitDone();
    });
  }
}

Status Group::RunBatch(Batch& batch) {
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

namespace {

// Holds what came of the batches that run beside the calling thread. Shared with their threads, for
// the last one still touches it when the calling thread goes on.
class AsideOutcomes {
 public:
  explicit AsideOutcomes(size_t count) : outcomes_(count), running_(count) {}

  void Set(size_t number, Status outcome) {
    const MutexLock lock(mutex_);
    outcomes_[number] = std::move(outcome);
    if (--running_ == 0) all_set_.NotifyAll();
  }
  // Waits for all and returns the first failure.
  Status Await() {
    MutexLock lock(mutex_);
    while (running_ > 0) all_set_.Wait(lock);
    for (Status& outcome : outcomes_)
      if (!outcome.ok()) return std::move(outcome);
    return Status::Ok();
  }

 private:
  Mutex mutex_;
  CondVar all_set_;
  std::vector<Status> outcomes_ TUTTI_GUARDED_BY(mutex_);
  size_t running_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

// Runs the first batch on the calling thread and the others beside it. Returns the first failure.
// Nothing may throw once a batch runs elsewhere, because that thread uses the caller's frame until
// the batch has ended.
Status Group::RunTogether(std::span<Batch> batches) {
  const auto run = [](Batch& batch) { return WithoutExceptions([&] { return RunBatch(batch); }); };
  if (batches.size() == 1) return run(batches[0]);
  const std::span<Batch> others = batches.subspan(1);
  const auto outcomes = std::make_shared<AsideOutcomes>(others.size());
  for (size_t i = 0; i < others.size(); ++i) {
    Batch& batch = others[i];
    const Status started = WithoutExceptions([&] {
      batch.comm->RunAside([&run, &batch, outcomes, i] { outcomes->Set(i, run(batch)); });
      return Status::Ok();
    });
    if (started.ok()) continue;
    // There is no memory to run it elsewhere. Its ticket has to be run all the same, and is here: a
    // communicator that has stopped waits for nothing.
    outcomes->Set(i, WithoutExceptions([&] {
                    batch.comm->comm->Stop(started, /*tell=*/true);
                    return run(batch);
                  }));
  }
  Status first = run(batches[0]);
  Status other = outcomes->Await();
  return first.ok() ? other : first;
}

Result<double> Group::Simulate() {
  if (depth_ == 0)
    return InvalidUsage("ncclGroupSimulateEnd without ncclGroupStart on this thread");
  double us = 0;
  for (const Entry& entry : entries_)
    if (const HandleUse use(entry.comm); use.inside() && entry.comm->comm)
      us += entry.comm->comm->operations().PredictUs(entry.issued.task);
  if (--depth_ > 0) return us;
  entries_.clear();
  if (!inits_.empty())
    NoteError(InvalidUsage(
        "ncclGroupSimulateEnd predicts operations, but its group makes or splits communicators"));
  if (Status error = std::exchange(error_, Status::Ok()); !error.ok()) {
    DropInits(error);
    return error;
  }
  return us;
}

}  // namespace tutti
