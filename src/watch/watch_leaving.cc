// Leave notices: how a rank tells the others how many operations it has begun, and how the others
// see that they wait in vain.

#include "watch/watch.h"

namespace tutti {

void Watch::SetLeaveHook(std::function<void()> hook) {
  const MutexLock lock(mutex_);
  leave_hook_ = std::move(hook);
}

void Watch::SendLeaveNotice(bool finished) {
  Bytes message = StartMessage(Message::kLeaving);
  AppendLeaveNotice({.rank = bootstrap_.rank(),
                     .finished = finished,
                     .collectives = log_.last_collective(),
                     .messages = log_.NumbersOfMessages()},
                    message);
  for (const int rank : bootstrap_.LinkedRanks())
    if (!HasLeft(rank)) bootstrap_.SendControl(rank, message);
}

// Not every two ranks have a link, so each rank passes new notices on.
void Watch::OnLeaveNotice(std::span<const std::byte> payload) {
  std::optional<LeaveNotice> notice = ReadLeaveNotice(payload.subspan(1), bootstrap_.num_ranks());
  if (!notice || notice->rank == bootstrap_.rank()) return;
  std::function<void()> hook;
  std::vector<int> to;
  {
    const MutexLock lock(mutex_);
    const int leaving = notice->rank;
    if (!leave_notices_.emplace(leaving, std::move(*notice)).second) return;
    hook = leave_hook_;
    for (const int rank : bootstrap_.LinkedRanks())
      if (!left_at_ns_.contains(rank) && !leave_notices_.contains(rank)) to.push_back(rank);
  }
  for (const int rank : to) bootstrap_.SendControl(rank, payload);
  if (hook) hook();
}

// A rank that has left after fewer collectives, or fewer messages with this rank, will never take
// part in the next.
Status Watch::CheckLeaveNotices() const {
  const uint64_t last = log_.last_collective();
  const std::vector<uint64_t> numbers = log_.NumbersOfMessages();
  const int here = bootstrap_.rank();
  const MutexLock lock(mutex_);
  for (const auto& [rank, notice] : leave_notices_) {
    if (notice.collectives < last) {
      const std::optional<OpSignature> next = log_.FindCollective(notice.collectives + 1);
      return RemoteError(
          "{} has ended its communicator after collective number {}, and {} "
          "waits for it in the next{}",
          NameOf(rank), notice.collectives, NameOf(here), next ? ", " + next->Describe() : "");
    }
    for (const bool sends : {false, true}) {
      const uint64_t mine = numbers[2 * static_cast<size_t>(rank) + (sends ? 1 : 0)];
      const uint64_t theirs = notice.messages[2 * static_cast<size_t>(here) + (sends ? 0 : 1)];
      if (mine > theirs)
        return RemoteError("{} has ended its communicator and {} {} of {} messages that {} {}",
                           NameOf(rank), sends ? "received" : "sent", theirs, mine, NameOf(here),
                           sends ? "sends to it" : "expects of it");
    }
  }
  return Status::Ok();
}

std::optional<Status> Watch::CutShort() const {
  const MutexLock lock(mutex_);
  for (const auto& [rank, notice] : leave_notices_)
    if (!notice.finished)
      return RemoteError(
          "{} has ended its communicator in the middle of an operation that {} is in, {}",
          NameOf(rank), NameOf(bootstrap_.rank()), WhatThisDoes());
  return std::nullopt;
}

}  // namespace tutti
