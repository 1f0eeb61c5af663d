#pragma once

// The waits of all communicators of a process. A rank that is idle in one communicator may wait in
// another. Two communicators in opposite order on two ranks hold each other up in this way, and
// only a sentence that shows both communicators explains the stall.
//
// The board also carries letters between processes: short messages that concern a process as a
// whole, over the links of any communicator that both processes share.
//
// The process owns the board. Any thread may call.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace tutti {

class Watch;

class WaitBoard {
 public:
  void Add(const Watch& watch);
  // REQUIRES: called before the end of `watch`, without locks of the watch.
  void Remove(const Watch& watch);
  // Returns the waits of this process in communicators besides that of `asked`, such as ", and its
  // process waits in communicator 1f for rank 2 (…), in collective number 1, …". Returns an empty
  // text without such waits. REQUIRES: the caller holds no lock of a watch.
  std::string WaitsBeside(const Watch& asked) const;

  // Is called with each letter of rank `from` of a communicator, on the bootstrap's thread. Must
  // not block.
  using LetterHandler =
      std::function<void(uint64_t communicator, int from, std::span<const std::byte>)>;
  // Null, as at first: letters are dropped. After return the earlier handler is not running.
  void SetLetterHandler(LetterHandler handler);
  // Sends a letter to the process of a rank, without waiting; the letter may be lost. Returns false
  // where no links of the communicator lead to that rank.
  bool SendLetter(uint64_t communicator, int to, std::span<const std::byte> letter) const;
  // Hands a letter to the handler. For the watches.
  void OnLetter(const Watch& watch, int from, std::span<const std::byte> letter) const;
  // Returns the ranks that the communicator has lost, as far as this process knows.
  std::vector<int> LostRanks(uint64_t communicator) const;

 private:
  const Watch* Find(uint64_t communicator) const TUTTI_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::set<const Watch*> watches_ TUTTI_GUARDED_BY(mutex_);
  mutable Mutex handler_mutex_;
  LetterHandler letter_handler_ TUTTI_GUARDED_BY(handler_mutex_);
};

}  // namespace tutti
