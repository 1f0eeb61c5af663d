#pragma once

// Keeps the operations that a rank has begun in a communicator, for other ranks that ask: the last
// collectives, the last counts of pairs of ranks, the last messages, and how many messages the rank
// has exchanged with each other rank.
//
// Threads: BeginCollective, BeginMessages, End and FindReceive belong to the thread that runs or
// launches operations, at most one at a time; the other functions may be called from any thread. A
// collective is noted without a lock, because every small AllReduce passes through here.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "observe/record.h"
#include "observe/signature.h"
#include "plan/task.h"

namespace tutti {

// Describes a send or receive. The signature's root is the other end, and its sequence counts the
// messages between the two ranks in this direction, from 1.
struct MessageCall {
  OpSignature signature;
  bool is_send = false;
};

// Says how many elements a rank sends to another rank in a collective with counts by pair, and how
// many the rank expects in return.
struct PairCounts {
  uint64_t sends = 0;
  uint64_t receives = 0;
  friend bool operator==(const PairCounts&, const PairCounts&) = default;
};

class OperationLog {
 public:
  // A rank may be asked about operations this far back.
  static constexpr size_t kMessages = 128;
  static constexpr size_t kExchanges = 8;  // Their counts are four numbers for each rank.

  // `record`, the part of the log that other processes see, must outlive the log.
  OperationLog(int num_ranks, observe::OperationRecord& record)
      : exchanged_(2 * static_cast<size_t>(num_ranks)), record_(record) {}

  // Numbers the collective and keeps its signature. `parts` are kept where HasCountsByPair.
  void BeginCollective(OpSignature& signature, const std::shared_ptr<const VariableParts>& parts) {
    signature.sequence = record_.collectives.last() + 1;
    if (HasCountsByPair(signature.collective)) KeepParts(signature.sequence, parts);
    record_.under_way.store(observe::OperationRecord::kCollective, std::memory_order_relaxed);
    std::atomic<uint64_t>& begun = record_.begun[static_cast<size_t>(signature.collective)];
    begun.store(begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    record_.collectives.Add(signature);
  }
  // Numbers the messages, which belong to the same group, and keeps them. REQUIRES: `messages`
  // outlive the group, which End ends.
  void BeginMessages(std::span<MessageCall> messages);
  void End() {
    record_.under_way.store(observe::OperationRecord::kNothing, std::memory_order_relaxed);
  }
  // Returns the receive from `peer` with this tag among the messages that are under way.
  std::optional<OpSignature> FindReceive(int peer, uint32_t tag) const;

  // Returns whether an operation has begun and not ended.
  bool busy() const {
    return record_.under_way.load(std::memory_order_relaxed) != observe::OperationRecord::kNothing;
  }
  // Returns the number of the last collective; 0 before the first.
  uint64_t last_collective() const { return record_.collectives.last(); }
  // The next four return nothing for an operation that has not begun, or lies too far back.
  std::optional<OpSignature> FindCollective(uint64_t sequence) const {
    return record_.collectives.Find(sequence);
  }
  std::optional<OpSignature> CollectiveUnderWay() const;
  // Returns the counts between this rank and `peer` in collective number `sequence`.
  std::optional<PairCounts> FindPair(uint64_t sequence, int peer) const;
  std::optional<OpSignature> FindMessage(int peer, bool is_send, uint64_t sequence) const;
  // Returns the messages that were begun since the last call, as far as they are kept.
  std::vector<MessageCall> TakeNewMessages();
  // Returns, for each rank, how many messages this rank has received from the other rank and sent
  // to it.
  std::vector<uint64_t> NumbersOfMessages() const;
  // Returns the activity of this rank, such as "in collective number 3, AllReduce(...)".
  std::string Describe() const;

 private:
  // Holds the kept counts of a collective.
  struct Exchange {
    uint64_t sequence = 0;
    std::shared_ptr<const VariableParts> parts = nullptr;
  };

  static size_t PlaceOf(int peer, bool is_send) {
    return 2 * static_cast<size_t>(peer) + (is_send ? 1 : 0);
  }
  void KeepParts(uint64_t sequence, const std::shared_ptr<const VariableParts>& parts);

  mutable Mutex mutex_;
  std::array<Exchange, kExchanges> exchanges_ TUTTI_GUARDED_BY(mutex_);
  uint64_t num_exchanges_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::array<MessageCall, kMessages> messages_ TUTTI_GUARDED_BY(mutex_);
  uint64_t num_taken_ TUTTI_GUARDED_BY(mutex_) = 0;           // TakeNewMessages counts them.
  std::vector<uint64_t> exchanged_ TUTTI_GUARDED_BY(mutex_);  // NumbersOfMessages returns them.
  // The messages under way. Used by the thread that runs operations only.
  std::span<const MessageCall> group_;
  // Stands last: every operation reads the reference, and the words that follow in the watch.
  observe::OperationRecord& record_;
};

}  // namespace tutti
