// Memory phases: a resting communicator lends its memory (ncclCommSuspend), and takes the memory
// again (ncclCommResume).
//
//   running ── all idle? ── nothing waits? ── give back ──▶ suspended ── take back ──▶ running
//      ▲            │ no            │ no                        ▲             │ a rank cannot
//      └────────────┴───────────────┘                           └─────────────┘
//
// After each step the ranks agree on its outcome: all go on or none does. The connections, the
// watch and the bootstrap live on meanwhile. The death of a rank is therefore noticed as ever, and
// ends the waits here as well as the waits of registrations.

#include "comm/communicator.h"

namespace tutti {

Status Communicator::Concluded(Result<Agreement> agreed) {
  return agreed.ok() ? std::move(agreed->refusal) : StopAfterStep(std::move(agreed).status());
}

Result<Agreement> Communicator::GiveBackMemory(const Status& wrong) {
  const JointRanks ranks = this->ranks();
  TUTTI_ASSIGN(Agreement agreed, ranks.Agree(wrong.ok() ? operations_->CheckIdle() : wrong));
  if (!agreed.go_on()) return agreed;
  TUTTI_ASSIGN(agreed, ranks.Agree(operations_->CheckNothingWaits()));
  if (!agreed.go_on()) return agreed;
  TUTTI_ASSIGN(agreed, ranks.Agree(operations_->GiveBackMemory()));
  // Some ranks have given back memory in use by others. Nothing undoes this.
  TUTTI_TRY(std::move(agreed.refusal));
  return Agreement();
}

// The ranks meet first: the call ends on no rank before all ranks have made the call.
Result<Agreement> Communicator::TakeBackMemory() {
  const JointRanks ranks = this->ranks();
  TUTTI_ASSIGN(Agreement met, ranks.Agree(Status::Ok()));
  if (!met.go_on()) return met;
  return operations_->TakeBackMemory(ranks.deadline, ranks.abort_flag);
}

Status Communicator::Suspend(const Status& wrong) {
  const Watch::Step step(*watch_, "in ncclCommSuspend");
  if (watch_->stopped()) return watch_->StopReason();
  if (suspended_.exchange(true)) return InvalidUsage("the communicator is suspended already");
  Status status = Concluded(GiveBackMemory(wrong));
  if (!status.ok()) suspended_ = false;
  return status;
}

Status Communicator::Resume() {
  const Watch::Step step(*watch_, "in ncclCommResume");
  if (watch_->stopped()) return watch_->StopReason();
  if (!suspended())
    return InvalidUsage("the communicator is not suspended: there is no memory to take back");
  Status status = Concluded(TakeBackMemory());
  if (status.ok()) suspended_ = false;
  return status;
}

}  // namespace tutti
