#include "comm/group.h"

#include <utility>

namespace tutti {

Group& ThreadGroup() {
  thread_local Group group;
  return group;
}

Status Group::End() {
  if (depth_ == 0) return InvalidUsage("ncclGroupEnd without ncclGroupStart on this thread");
  if (--depth_ > 0) return Status::Ok();
  OperationBatches batches;
  if (Status error = Take(batches); !error.ok()) {
    operations_.Clear();
    inits_.Drop(error);
    return error;
  }
  Status inits = inits_.Launch();
  if (!inits.ok() && inits.code() != Code::kInProgress) return inits;
  Status launched = OperationGroup::Launch(std::move(batches));
  return launched.ok() ? inits : launched;
}

// Takes the operations of the group in batches, or returns why the group is refused. A group with
// both operations and the making of communicators is refused: once communicators are made, the
// operations could not be refused any more.
Status Group::Take(OperationBatches& batches) {
  TUTTI_TRY(std::exchange(error_, Status::Ok()));
  if (inits_.makes() && !operations_.empty())
    return InvalidUsage(
        "a group holds operations, or the making of communicators, not both: end the group that "
        "makes them first");
  TUTTI_ASSIGN(batches, operations_.Take());
  return OperationGroup::Check(batches);
}

Status Group::AddInit(ncclComm& comm, ncclComm* parent, std::function<Status()> job) {
  return AddJob({&comm, parent, std::move(job)});
}

Status Group::AddJoint(ncclComm& comm, std::function<Status()> job) {
  return AddJob({&comm, nullptr, std::move(job), /*makes=*/false});
}

Status Group::AddJob(InitJob job) {
  if (!active()) return InitGroup::LaunchAlone(std::move(job));
  inits_.Add(std::move(job));
  return Status::Ok();
}

Status Group::Add(ncclComm& comm, IssuedTask issued) {
  if (!active()) return operations_.LaunchAlone(comm, std::move(issued));
  operations_.Add(comm, std::move(issued));
  return Status::Ok();
}

Result<double> Group::Simulate() {
  if (depth_ == 0)
    return InvalidUsage("ncclGroupSimulateEnd without ncclGroupStart on this thread");
  const double us = operations_.PredictUs();
  if (--depth_ > 0) return us;
  operations_.Clear();
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
