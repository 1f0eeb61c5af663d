#include "comm/group.h"

#include <algorithm>
#include <future>
#include <thread>

namespace tutti {
namespace {

Status InProgress() { return Status(Code::kInProgress, "the operation goes on in the background"); }

// Runs `job` and keeps its outcome in the handle.
void RunInit(ncclComm& comm, const std::function<Status()>& job) {
  if (const Status status = job(); !status.ok()) comm.Fail(status);
}

}  // namespace

Group& ThreadGroup() {
  thread_local Group group;
  return group;
}

Status Group::End() {
  if (depth_ == 0) return InvalidUsage("ncclGroupEnd without ncclGroupStart on this thread");
  if (--depth_ > 0) return Status::Ok();
  Status error = std::move(error_);
  error_ = Status::Ok();
  if (!error.ok()) {
    entries_.clear();
    for (InitJob& init : inits_) init.comm->Fail(error);
    inits_.clear();
    return error;
  }
  const Status inits = LaunchInits();
  if (!inits.ok() && inits.code() != Code::kInProgress) {
    entries_.clear();
    return inits;
  }
  Status operations = LaunchOperations();
  return operations.ok() ? inits : operations;
}

Status Group::AddInit(ncclComm& comm, std::function<Status()> job) {
  if (active()) {
    inits_.push_back({&comm, std::move(job)});
    return Status::Ok();
  }
  if (!comm.blocking) {
    comm.pending.fetch_add(1);
    comm.lane().Enqueue([&comm, job = std::move(job)] {
      RunInit(comm, job);
      comm.pending.fetch_sub(1);
    });
    return InProgress();
  }
  RunInit(comm, job);
  return comm.Error();
}

Status Group::LaunchInits() {
  std::vector<InitJob> inits = std::move(inits_);
  inits_.clear();
  bool in_progress = false;
  std::vector<std::thread> threads;
  std::vector<ncclComm*> waited;
  for (InitJob& init : inits) {
    ncclComm& comm = *init.comm;
    if (!comm.blocking) {
      in_progress = true;
      comm.pending.fetch_add(1);
      comm.lane().Enqueue([&comm, run = std::move(init.run)] {
        RunInit(comm, run);
        comm.pending.fetch_sub(1);
      });
      continue;
    }
    waited.push_back(&comm);
    threads.emplace_back([&comm, run = std::move(init.run)] { RunInit(comm, run); });
  }
  for (std::thread& thread : threads) thread.join();
  for (ncclComm* comm : waited)
    if (Status status = comm->Error(); !status.ok()) return status;
  return in_progress ? InProgress() : Status::Ok();
}

Status Group::Add(ncclComm& comm, const Task& task, HostStream* stream) {
  if (!active() && stream == nullptr && comm.blocking) return RunNow(comm, std::span(&task, 1));
  entries_.push_back({&comm, task, stream});
  return active() ? Status::Ok() : LaunchOperations();
}

Status Group::RunNow(ncclComm& comm, std::span<const Task> tasks) {
  Status status = comm.comm->Execute(comm.comm->TakeTicket(), tasks);
  if (!status.ok()) comm.Fail(status);
  return status;
}

std::vector<Group::Batch> Group::MakeBatches() {
  std::vector<Batch> batches;
  for (Entry& entry : entries_) {
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const Batch& b) { return b.comm == entry.comm; });
    if (batch == batches.end()) {
      batches.push_back({entry.comm, {}, entry.stream, {}});
      batch = batches.end() - 1;
    } else if (entry.stream != batch->stream && entry.stream != nullptr) {
      auto& others = batch->other_streams;
      if (std::find(others.begin(), others.end(), entry.stream) == others.end())
        others.push_back(entry.stream);
    }
    batch->tasks.push_back(std::move(entry.task));
  }
  entries_.clear();
  return batches;
}

void Group::Queue(Batch batch, HostStream& stream) {
  ncclComm& comm = *batch.comm;
  comm.pending.fetch_add(1);
  // Work that comes later on the other streams of the batch must not start before the batch is
  // done.
  auto done = std::make_shared<std::promise<void>>();
  const std::shared_future<void> finished = done->get_future().share();
  for (HostStream* other : batch.other_streams)
    if (other != &stream) other->Enqueue([finished] { finished.wait(); });
  stream.Enqueue([batch = std::move(batch), &comm, &stream, done] {
    const Status status = comm.comm->Execute(batch.ticket, batch.tasks);
    if (!status.ok()) {
      comm.Fail(status);
      stream.NoteError(status);
    }
    comm.pending.fetch_sub(1);
    done->set_value();
  });
}

Status Group::LaunchOperations() {
  if (entries_.empty()) return Status::Ok();
  return RunBatches(MakeBatches());
}

Status Group::RunBatches(std::vector<Batch> batches) {
  std::vector<Batch> now;
  bool in_progress = false;
  for (Batch& batch : batches) {
    batch.ticket = batch.comm->comm->TakeTicket();
    if (batch.stream != nullptr) {
      Queue(std::move(batch), *batch.stream);
    } else if (!batch.comm->blocking) {
      in_progress = true;
      Queue(std::move(batch), batch.comm->lane());
    } else {
      now.push_back(std::move(batch));
    }
  }
  Status status;
  std::vector<std::future<Status>> others;
  for (size_t i = 1; i < now.size(); ++i) {
    auto result = std::make_shared<std::promise<Status>>();
    others.push_back(result->get_future());
    now[i].comm->lane().Enqueue([batch = &now[i], result] {
      result->set_value(batch->comm->comm->Execute(batch->ticket, batch->tasks));
    });
  }
  const auto note = [&](ncclComm& comm, Status outcome) {
    if (outcome.ok()) return;
    comm.Fail(outcome);
    if (status.ok()) status = std::move(outcome);
  };
  if (!now.empty()) note(*now[0].comm, now[0].comm->comm->Execute(now[0].ticket, now[0].tasks));
  for (size_t i = 1; i < now.size(); ++i) note(*now[i].comm, others[i - 1].get());
  if (!status.ok()) return status;
  return in_progress ? InProgress() : Status::Ok();
}

Result<double> Group::Simulate() {
  if (depth_ == 0)
    return InvalidUsage("ncclGroupSimulateEnd without ncclGroupStart on this thread");
  --depth_;
  double us = 0;
  for (const Entry& entry : entries_) us += entry.comm->comm->PredictUs(entry.task);
  entries_.clear();
  Status error = std::move(error_);
  error_ = Status::Ok();
  if (!error.ok()) return error;
  return us;
}

}  // namespace tutti
