// Calls that all ranks of a communicator make together: the events that end a call, and how the
// other ranks hear when a rank gives a call up.

#include <chrono>
#include <cstring>

#include "watch/watch.h"

namespace tutti {

Watch::JointCall::JointCall(Watch& watch, std::atomic<bool>& flag) : watch_(watch) {
  const MutexLock lock(watch_.mutex_);
  const uint64_t number = watch_.num_joint_calls_++;
  JointEnd& end = watch_.joint_calls_[this];
  end = {number, &flag, Status::Ok()};
  const auto given_up = watch_.calls_given_up_.find(number);
  if (!watch_.lost_reason_.ok())
    watch_.EndJointCall(end, watch_.lost_reason_);
  else if (given_up != watch_.calls_given_up_.end())
    watch_.EndJointCall(end, given_up->second);
}

Watch::JointCall::~JointCall() {
  const MutexLock lock(watch_.mutex_);
  watch_.joint_calls_.erase(this);
}

Status Watch::JointCall::reason() const {
  const MutexLock lock(watch_.mutex_);
  return watch_.joint_calls_.at(this).reason;
}

Status Watch::JointCall::AwaitReason(Deadline deadline) const {
  constexpr int kLookAgainMs = 1000;
  MutexLock lock(watch_.mutex_);
  const JointEnd& end = watch_.joint_calls_.at(this);
  while (end.reason.ok() && !deadline.Passed())
    watch_.joint_call_ended_.WaitFor(lock,
                                     std::chrono::milliseconds(deadline.RemainingMs(kLookAgainMs)));
  return end.reason;
}

void Watch::JointCall::GiveUp(const Status& reason) const {
  uint64_t number = 0;
  {
    const MutexLock lock(watch_.mutex_);
    number = watch_.joint_calls_.at(this).number;
  }
  watch_.GiveUpCall(number, reason);
}

// A call that has ended before keeps its reason.
void Watch::EndJointCall(JointEnd& end, const Status& reason) {
  if (!end.reason.ok()) return;
  end.reason = reason;
  end.flag->store(true, std::memory_order_release);
  joint_call_ended_.NotifyAll();
}

void Watch::EndJointCalls(const Status& reason) {
  for (auto& [call, end] : joint_calls_) EndJointCall(end, reason);
}

// Ends the call here if it is under way, and passes new reasons on, so all ranks hear of them.
void Watch::GiveUpCall(uint64_t number, const Status& reason) {
  {
    const MutexLock lock(mutex_);
    // Calls older than all remembered calls have been passed on before.
    const bool full = calls_given_up_.size() >= kMaxCallsGivenUp;
    if (full && number < calls_given_up_.begin()->first) return;
    if (!calls_given_up_.emplace(number, reason).second) return;
    if (full) calls_given_up_.erase(calls_given_up_.begin());
    for (auto& [call, end] : joint_calls_)
      if (end.number == number) EndJointCall(end, reason);
  }
  Bytes message = StartMessage(Message::kCallGivenUp);
  message.resize(1 + sizeof(number));
  std::memcpy(&message[1], &number, sizeof(number));
  AppendText(reason.message(), message);
  for (const int linked : bootstrap_.LinkedRanks()) bootstrap_.SendControl(linked, message);
}

// Reads the number of the call (8 bytes) and the reason.
void Watch::OnCallGivenUp(std::span<const std::byte> body) {
  uint64_t number = 0;
  if (body.size() < sizeof(number)) return;
  std::memcpy(&number, body.data(), sizeof(number));
  GiveUpCall(number, RemoteError("{}", TextOf(body.subspan(sizeof(number)))));
}

}  // namespace tutti
