#include "comm/joint_call.h"

#include <fmt/format.h>

#include <utility>

namespace tutti {

Status JointCall::Explain(Status failure) {
  if (std::exchange(explained_, true)) return failure;
  Watch& watch = comm_.watch();
  if (failure.code() == Code::kRemoteError && reason().ok())
    failure = watch.FirstReason(std::move(failure));
  if (Status ended = reason(); !ended.ok()) return ended;
  // Some waits are not followed by the watch: at a root, or for the memory of another process.
  if (failure.code() == Code::kTimeout) watch.FindHungRanks();
  if (in_step_) return failure;
  // An abort of the new communicator gives up only the new one; its parent goes on.
  if (flag_.load()) {
    call_.GiveUp(
        RemoteError("{} gave up, {}: the communicator that was being made was aborted there",
                    NameOfThis(), doing_));
    return failure;
  }
  comm_.Stop(Status(failure.code(),
                    fmt::format("{} gave up, {}: {}", NameOfThis(), doing_, failure.message())),
             /*tell=*/true);
  return failure;
}

Status JointCall::GiveUp(Status failure) const {
  // The reason why another rank has closed a connection may still be on its way.
  if (failure.code() == Code::kRemoteError)
    static_cast<void>(call_.AwaitReason(Deadline::After(Watch::kExplainBrokenNs)).ok());
  if (!reason().ok()) return Status::Ok();
  call_.GiveUp(RemoteError("{}: {}", NameOfThis(), failure.message()));
  return failure;
}

}  // namespace tutti
