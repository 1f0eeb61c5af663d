#include "comm/group.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <thread>
#include <utility>

#include "base/exceptions.h"
#include "base/log.h"
#include "sys/thread.h"

namespace tutti {
namespace {

using Shown = ncclComm::Shown;

Status InProgress() { return Status(Code::kInProgress, "the operation goes on in the background"); }

// Why a group is refused in which a handle was freed after it had been named.
Status Destroyed() {
  return InvalidUsage("a communicator was destroyed in the group that holds calls on it");
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
  if (Status error = std::exchange(error_, Status::Ok()); !error.ok()) {
    entries_.clear();
    device_entries_.clear();
    DropInits(error);
    return error;
  }
  Status inits = LaunchInits();
  if (!inits.ok() && inits.code() != Code::kInProgress) {
    entries_.clear();
    device_entries_.clear();
    return inits;
  }
  // What fails on one communicator is no reason to leave the ranks of others waiting.
  Status on_devices = LaunchOnDevices();
  Status on_hosts = LaunchOperations();
  if (!on_devices.ok()) return on_devices;
  return on_hosts.ok() ? inits : on_hosts;
}

// ---------------------------------------------------------------------------------------------------------------------
// Initialisations

void Group::DropInits(const Status& reason) {
  for (const InitJob& init : inits_)
    if (const HandleUse use(init.comm); init.makes && use.inside()) init.comm->Fail(reason);
  inits_.clear();
}

void Group::BeginInit(const InitJob& job) {
  job.comm->BeginWork(Shown::kInProgress);
  if (!job.makes) job.comm->joint_jobs.fetch_add(1, std::memory_order_relaxed);
  if (job.parent != nullptr) job.parent->BeginChild(*job.comm);
}

// Runs `job` and keeps its outcome in the handle.
Status Group::RunInit(const InitJob& job) {
  Status status = WithoutExceptions(job.run);
  if (!job.makes) job.comm->joint_jobs.fetch_sub(1, std::memory_order_release);
  if (!status.ok()) {
    if (job.makes)
      job.comm->Fail(status);
    else
      job.comm->NoteFailure(status, /*in_background=*/!job.comm->blocking);
  }
  if (job.parent != nullptr) job.parent->ForgetChild(*job.comm);
  job.comm->EndWork(Shown::kInProgress);
  // Last: whoever sees the parent at rest may use what the job has written.
  if (job.parent != nullptr) job.parent->EndWork(Shown::kInProgress);
  return status;
}

// The first failure of all; the others run nevertheless, as on the other ranks.
Status Group::RunChain(const InitChain& chain) {
  Status first;
  for (const InitJob& job : chain)
    if (Status done = RunInit(job); first.ok()) first = std::move(done);
  return first;
}

void Group::QueueInits(InitChain chain) {
  ncclComm& over = Over(chain[0]);
  over.joint_lane().Enqueue(
      [chain = std::move(chain)] { [[maybe_unused]] const Status kept = RunChain(chain); });
}

// Whose bootstrap the ranks talk over in it.
ncclComm& Group::Over(const InitJob& job) {
  return job.parent != nullptr ? *job.parent : *job.comm;
}

Status Group::AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> run) {
  return Add({&comm, parent, std::move(run)});
}

Status Group::AddJoint(ncclComm& comm, std::function<Status()> run) {
  return Add({&comm, nullptr, std::move(run), /*makes=*/false});
}

Status Group::Add(InitJob job) {
  ncclComm& comm = *job.comm;
  if (active()) {
    inits_.push_back(std::move(job));
    return Status::Ok();
  }
  BeginInit(job);
  if (comm.blocking) return RunInit(job);
  QueueInits({std::move(job)});
  return InProgress();
}

// Those over one bootstrap run one after another, in the order in which they were called.
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
  for (const InitJob& init : inits) BeginInit(init);
  uses.clear();
  bool in_progress = false;
  std::vector<InitChain> chains = MakeChains(std::move(inits));
  std::vector<Status> outcomes(chains.size());
  std::vector<std::thread> threads;
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

Status Group::Add(ncclComm& comm, const Task& task, HostStream* stream) {
  if (!active() && stream == nullptr && comm.blocking) return RunNow(comm, std::span(&task, 1));
  entries_.push_back({&comm, task, stream});
  return active() ? Status::Ok() : LaunchOperations();
}

Status Group::AddOnDevice(ncclComm& comm, const Task& task, void* stream) {
  if (active()) {
    device_entries_.push_back({&comm, {task, stream}});
    return Status::Ok();
  }
  const DeviceTask entry = {task, stream};
  return LaunchOn(comm, std::span(&entry, 1));
}

// The driver may hold the caller up while a GPU is stuck, and another thread abort meanwhile.
Status Group::LaunchOn(ncclComm& comm, std::span<const DeviceTask> tasks) {
  if (comm.joint_jobs.load(std::memory_order_acquire) > 0)
    return InvalidUsage(
        "a window of the communicator is still being registered: poll ncclCommGetAsyncError until "
        "it "
        "is no longer ncclInProgress");
  const log::ThreadRankMark mark(comm.comm->rank());
  Status status = comm.comm->LaunchOnDevice(tasks);
  if (!status.ok()) comm.NoteFailure(status, /*in_background=*/false);
  return status;
}

// Each communicator's operations together, in the order in which the group first names them. The
// first failure of all.
Status Group::LaunchOnDevices() {
  std::vector<DeviceEntry> entries = std::exchange(device_entries_, {});
  std::vector<HandleUse> uses;
  for (const DeviceEntry& entry : entries) {
    uses.emplace_back(entry.comm);
    if (!uses.back().inside() || !entry.comm->comm) return Destroyed();
  }
  std::vector<DeviceTask> tasks;
  Status first;
  for (size_t i = 0; i < entries.size(); ++i) {
    ncclComm* const comm = entries[i].comm;
    if (comm == nullptr) continue;  // launched with an earlier one
    tasks.clear();
    for (size_t k = i; k < entries.size(); ++k) {
      if (entries[k].comm != comm) continue;
      tasks.push_back(std::move(entries[k].entry));
      entries[k].comm = nullptr;
    }
    if (Status launched = LaunchOn(*comm, tasks); first.ok()) first = std::move(launched);
  }
  return first;
}

Status Group::RunNow(ncclComm& comm, std::span<const Task> tasks) {
  comm.ForgetOperationError();
  const log::ThreadRankMark mark(comm.comm->rank());
  Status status = comm.comm->Execute(comm.comm->TakeTicket(), tasks);
  if (!status.ok()) [[unlikely]]
    comm.NoteFailure(status, /*in_background=*/false);
  return status;
}

// Makes one for each communicator, in the order in which the group first names them. `uses` keeps
// their handles.
Result<std::vector<Group::Batch>> Group::MakeBatches(std::vector<HandleUse>& uses) {
  std::vector<Batch> batches;
  for (Entry& entry : std::exchange(entries_, {})) {
    ncclComm& comm = *entry.comm;
    uses.emplace_back(&comm);
    if (!uses.back().inside() || !comm.comm) return Destroyed();
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const Batch& b) { return b.comm == &comm; });
    if (batch == batches.end()) batch = batches.insert(batches.end(), Batch{.comm = &comm});
    if (entry.stream != nullptr) {
      AddOnce(batch->streams, entry.stream);
    } else if (comm.blocking) {
      batch->on_caller = true;
    } else {
      batch->on_lane = true;
      AddOnce(batch->streams, &comm.lane());
    }
    batch->tasks.push_back(std::move(entry.task));
  }
  return batches;
}

std::vector<Group::Launch> Group::MakeLaunches(std::vector<Batch> batches) {
  std::vector<Launch> launches;
  for (Batch& batch : batches) {
    Launch joint;
    joint.streams = batch.streams;
    joint.on_caller = batch.on_caller;
    joint.batches.push_back(std::move(batch));
    // The batch may be what joins launches that were apart so far.
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

Status Group::LaunchOperations() {
  if (entries_.empty()) return Status::Ok();
  std::vector<HandleUse> uses;
  TUTTI_ASSIGN(std::vector<Batch> batches, MakeBatches(uses));
  bool in_progress = false;
  for (Batch& batch : batches) {
    batch.comm->ForgetOperationError();
    batch.comm->BeginWork(ShownAs(batch));
    batch.ticket = batch.comm->comm->TakeTicket();
    in_progress |= batch.on_lane;
  }
  std::vector<Batch> now;
  for (Launch& launch : MakeLaunches(std::move(batches))) {
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

ncclComm::Shown Group::ShownAs(const Batch& batch) {
  return batch.on_lane ? Shown::kInProgress : Shown::kNo;
}

void Group::Queue(Launch launch) {
  HostStream& first = *launch.streams[0];
  const std::vector<HostStream*> others(launch.streams.begin() + 1, launch.streams.end());
  std::shared_ptr<Fence> fence;
  if (!others.empty()) {
    fence = std::make_shared<Fence>(others.size(), launch.batches.size());
    for (Batch& batch : launch.batches) batch.fence = fence;
  }
  for (HostStream* other : others) other->Enqueue([fence] { fence->reached.count_down(); });
  first.Enqueue([batches = std::move(launch.batches)] {
    [[maybe_unused]] const Status kept = RunTogether(batches);
  });
  for (HostStream* other : others) other->Enqueue([fence] { fence->done.wait(); });
}

// The streams of a launch that the calling thread is about to run.
void Group::HoldStreams(Launch& launch) {
  const auto fence = std::make_shared<Fence>(launch.streams.size(), launch.batches.size());
  for (Batch& batch : launch.batches) batch.fence = fence;
  for (HostStream* stream : launch.streams) {
    if (stream->OnOwnThread()) {  // a host function that calls the library: the stream is here
      fence->reached.count_down();
      continue;
    }
    stream->Enqueue([fence, caller = std::this_thread::get_id()] {
      fence->reached.count_down();
      // A stream without a thread of its own runs this here, where the batches come next.
      if (std::this_thread::get_id() != caller) fence->done.wait();
    });
  }
}

Status Group::RunBatch(const Batch& batch) {
  ncclComm& comm = *batch.comm;
  if (batch.fence) batch.fence->reached.wait();
  const log::ThreadRankMark mark(comm.comm->rank());
  Status status = comm.comm->Execute(batch.ticket, batch.tasks);
  if (!status.ok()) {
    comm.NoteFailure(status, /*in_background=*/batch.on_lane);
    for (HostStream* stream : batch.streams) stream->NoteError(status);
  }
  comm.EndWork(ShownAs(batch));
  if (batch.fence) batch.fence->done.count_down();
  return status;
}

// Runs the first on the calling thread and the others beside it. The first failure of all.
Status Group::RunTogether(std::span<const Batch> batches) {
  std::vector<std::future<Status>> others;
  for (const Batch& batch : batches.subspan(1)) {
    auto outcome = std::make_shared<std::promise<Status>>();
    others.push_back(outcome->get_future());
    batch.comm->RunAside([&batch, outcome] { outcome->set_value(RunBatch(batch)); });
  }
  Status first = RunBatch(batches[0]);
  for (std::future<Status>& other : others)
    if (Status status = other.get(); first.ok()) first = std::move(status);
  return first;
}

Result<double> Group::Simulate() {
  if (depth_ == 0)
    return InvalidUsage("ncclGroupSimulateEnd without ncclGroupStart on this thread");
  double us = 0;
  for (const Entry& entry : entries_)
    if (const HandleUse use(entry.comm); use.inside() && entry.comm->comm)
      us += entry.comm->comm->PredictUs(entry.task);
  for (const DeviceEntry& entry : device_entries_)
    if (const HandleUse use(entry.comm); use.inside() && entry.comm->comm)
      us += entry.comm->comm->PredictUs(entry.entry.task);
  if (--depth_ > 0) return us;
  entries_.clear();
  device_entries_.clear();
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
