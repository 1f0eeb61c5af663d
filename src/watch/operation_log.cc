#include "watch/operation_log.h"

#include <fmt/format.h>

#include <algorithm>

namespace tutti {

using observe::OperationRecord;

void OperationLog::KeepParts(uint64_t sequence, const std::shared_ptr<const VariableParts>& parts) {
  const MutexLock lock(mutex_);
  exchanges_[num_exchanges_++ % kExchanges] = {sequence, parts};
}

void OperationLog::BeginMessages(std::span<MessageCall> messages) {
  const MutexLock lock(mutex_);
  group_ = messages;
  uint64_t begun = record_.messages_begun.load(std::memory_order_relaxed);
  for (MessageCall& message : messages) {
    OpSignature& signature = message.signature;
    signature.sequence = ++exchanged_[PlaceOf(signature.root, message.is_send)];
    messages_[begun++ % kMessages] = message;
  }
  record_.messages_begun.store(begun, std::memory_order_relaxed);
  record_.under_way.store(messages.size(), std::memory_order_relaxed);
}

std::optional<OpSignature> OperationLog::FindReceive(int peer, uint32_t tag) const {
  const uint64_t under_way = record_.under_way.load(std::memory_order_relaxed);
  if (under_way == OperationRecord::kNothing || under_way == OperationRecord::kCollective)
    return {};
  for (const MessageCall& message : group_)
    if (!message.is_send && message.signature.root == peer && message.signature.Tag() == tag)
      return message.signature;
  return {};
}

std::optional<OpSignature> OperationLog::CollectiveUnderWay() const {
  if (record_.under_way.load(std::memory_order_relaxed) != OperationRecord::kCollective) return {};
  return FindCollective(last_collective());
}

std::optional<PairCounts> OperationLog::FindPair(uint64_t sequence, int peer) const {
  const MutexLock lock(mutex_);
  for (const Exchange& one : exchanges_)
    if (one.parts && one.sequence == sequence)
      return PairCounts{one.parts->sends.Size(peer), one.parts->recvs.Size(peer)};
  return {};
}

std::optional<OpSignature> OperationLog::FindMessage(int peer, bool is_send,
                                                     uint64_t sequence) const {
  const MutexLock lock(mutex_);
  const uint64_t begun = record_.messages_begun.load(std::memory_order_relaxed);
  for (size_t i = 0; i < std::min<uint64_t>(begun, kMessages); ++i) {
    const MessageCall& one = messages_[i];
    if (one.is_send == is_send && one.signature.root == peer && one.signature.sequence == sequence)
      return one.signature;
  }
  return {};
}

std::vector<MessageCall> OperationLog::TakeNewMessages() {
  std::vector<MessageCall> taken;
  const MutexLock lock(mutex_);
  const uint64_t begun = record_.messages_begun.load(std::memory_order_relaxed);
  for (uint64_t i = begun - std::min<uint64_t>(begun - num_taken_, kMessages); i < begun; ++i)
    taken.push_back(messages_[i % kMessages]);
  num_taken_ = begun;
  return taken;
}

std::vector<uint64_t> OperationLog::NumbersOfMessages() const {
  const MutexLock lock(mutex_);
  return exchanged_;
}

// Read by other threads while operations run, so the answer may be a moment old.
std::string OperationLog::Describe() const {
  const uint64_t last = last_collective();
  const uint64_t under_way = record_.under_way.load(std::memory_order_relaxed);
  if (under_way != OperationRecord::kNothing && under_way != OperationRecord::kCollective)
    return fmt::format("in a group of {} sends and receives after collective number {}", under_way,
                       last);
  if (under_way == OperationRecord::kNothing && last == 0) return "idle, no collective called yet";
  const std::optional<OpSignature> collective = FindCollective(last);
  const bool idle = under_way == OperationRecord::kNothing;
  return fmt::format("{} collective number {}, {}", idle ? "idle after" : "in", last,
                     collective ? collective->Describe() : "which is over");
}

}  // namespace tutti
