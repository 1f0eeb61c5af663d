// Memory phases: a communicator that rests lends its memory (ncclCommSuspend), and takes it again
// (ncclCommResume).
//
//   running ── all idle? ── nothing waits? ── give back ──▶ suspended ── take back ──▶ running
//      ▲            │ no            │ no                        ▲             │ a rank cannot
//      └────────────┴───────────────┘                           └─────────────┘
//
// After each step the ranks agree how it came out, so that all go on or none does. The connections,
// the watch and the bootstrap live on meanwhile: a rank that dies is noticed as ever, and ends the
// waits of these calls as it ends those of registrations.

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
  // What some ranks have given back, the others still use: that cannot be undone.
  TUTTI_TRY(std::move(agreed.refusal));
  return Agreement();
}

// The ranks meet first, so that the call ends on none of them before all have made it.
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
