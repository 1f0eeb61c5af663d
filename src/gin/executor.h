#pragma once

// Carries out single operations of GIN (nccl_device/impl/gin_descriptor.h): checks what they name,
// and copies, or begins a one-sided operation of the network. Has no state of its own but the
// staging words of values; any thread may call, one at a time for each queue.

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "devcomm/requirements.h"
#include "nccl_device/impl/gin_descriptor.h"
#include "transport/net/net.h"
#include "window/remote_windows.h"
#include "window/symmetric_memory.h"

namespace tutti {

class GinExecutor {
 public:
  struct Parts {
    int rank = 0;
    GinPlan plan;
    std::shared_ptr<const Window> resource;
    const SymmetricMemory* symmetric = nullptr;
    RemoteWindows* remote = nullptr;  // null where the LSA team is all ranks
  };
  explicit GinExecutor(Parts parts);

  const GinPlan& plan() const { return parts_.plan; }
  // Returns the rank that a queue leads to.
  int PeerOf(uint32_t queue) const;
  // Returns the connection to the queue's rank; null where that is reached by load and store.
  RmaConnection* ConnectionOf(uint32_t queue) const;

  // Where an operation stands in the queues; `slot` is below the queue's depth.
  struct Position {
    uint32_t context = 0;
    uint32_t queue = 0;
    uint32_t slot = 0;
  };
  enum class Step { kDone, kUnderWay, kNoRoom };
  struct Begun {
    Step step = Step::kDone;
    NetRequest* request = nullptr;  // of what is under way
  };
  // Begins an operation. Fails where it names what is not there; then it has changed nothing.
  // REQUIRES: the caller is inside the queue's connection, if it has one.
  Result<Begun> Begin(const Position& at, const device::GinOperation& operation);
  // Returns how Begin would fail; ok where it would not, as far as that can be known.
  Status Check(const Position& at, const device::GinOperation& operation) const;

  // Returns the word of a counter, and the first word of a context's signals and counters.
  uint64_t* CounterOf(uint32_t context, uint32_t counter) const;
  uint64_t* SignalsOf(uint32_t context) const;

 private:
  using Place = RemoteWindows::Place;
  // A part of a window that an operation reaches.
  struct Range {
    const Window* window = nullptr;
    uint64_t offset = 0;
  };
  // All that an operation reaches; windows are null where it has no such part. `from` lies on this
  // rank for a put and on the peer for a get, `to` the other way round, `word` on the peer.
  struct Reached {
    Range to, from, word;
  };

  Result<Range> RangeOf(uint64_t window, uint64_t offset, uint64_t bytes, int owner,
                        const char* what) const;
  Result<Range> SignalWord(const Position& at, const device::GinOperation& operation) const;
  Status CheckNumbers(const device::GinOperation& operation) const;
  Result<Reached> Find(const Position& at, const device::GinOperation& operation) const;
  Begun Put(int peer, const device::GinOperation& operation, const Reached& reached);
  Result<Begun> PutOverNetwork(const Position& at, const device::GinOperation& operation,
                               const Reached& reached);
  // Keeps the value of an operation where the network can read it until it is done.
  Range StageValue(const Position& at, const device::GinOperation& operation) const;
  Result<Begun> Get(int peer, const device::GinOperation& operation, const Reached& reached);
  std::byte* Local(const Range& range, int rank) const;
  // Returns word `number` of those that begin `at` bytes into this rank's resource window.
  uint64_t* WordAt(uint64_t at, uint64_t number) const;

  const Parts parts_;
  const LsaTeam team_;
};

}  // namespace tutti
