#pragma once

// The operands of an operation of a kernel (nccl_device/impl/gin_descriptor.h): looks up the
// windows, signals and counters that the operation names, and checks them. Has no state of its own;
// any thread may call.

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "devcomm/gin_plan.h"
#include "nccl_device/impl/gin_descriptor.h"
#include "window/symmetric_memory.h"

namespace tutti {

class GinOperands {
 public:
  struct Parts {
    int rank = 0;
    GinPlan plan;
    // Holds signals, counters and values where the plan says.
    std::shared_ptr<const Window> resource;
    const SymmetricMemory* symmetric = nullptr;  // has all windows but the resource window
  };
  explicit GinOperands(Parts parts) : parts_(std::move(parts)), team_(parts_.resource->team) {}

  const GinPlan& plan() const { return parts_.plan; }
  const LsaTeam& team() const { return team_; }
  int rank() const { return parts_.rank; }
  // Returns the rank at the end of a queue.
  int PeerOf(uint32_t queue) const;

  // Where an operation stands in the queues; `slot` is below the queue's depth.
  struct Position {
    uint32_t context = 0;
    uint32_t queue = 0;
    uint32_t slot = 0;
  };
  // A part of a window.
  struct Range {
    const Window* window = nullptr;
    uint64_t offset = 0;
  };
  // All memory that an operation reaches. The windows of absent parts are null. `from` lies on this
  // rank for a put and on the peer for a get, `to` the other way round, and `word` on the peer.
  struct Reached {
    Range to, from, word;
  };
  // Finds all memory that an operation reaches. Fails where an operand is invalid.
  Result<Reached> Find(const Position& at, const device::GinOperation& operation) const;

  // Returns the address at which this rank reaches a range on `rank`, a member of its team.
  std::byte* Local(const Range& range, int rank) const {
    return range.window->At(rank - team_.first, range.offset);
  }
  // Returns the word of a counter, and the first word of a context's signals.
  uint64_t* CounterOf(uint32_t context, uint32_t counter) const;
  uint64_t* SignalsOf(uint32_t context) const;
  // Returns the word that may keep the value of the operation at `at` until the operation is done.
  Range ValueOf(const Position& at) const;

 private:
  Result<Range> RangeOf(uint64_t window, uint64_t offset, uint64_t bytes, int owner,
                        const char* what) const;
  Result<Range> SignalWord(const Position& at, const device::GinOperation& operation) const;
  Status CheckNumbers(const device::GinOperation& operation) const;
  // Returns word `number` of an array that begins `at` bytes into this rank's resource window.
  uint64_t* WordAt(uint64_t at, uint64_t number) const;

  const Parts parts_;
  const LsaTeam team_;
};

// Return whether an operation has any of these parts (device::GinOp).
inline bool Has(const device::GinOperation& operation, uint32_t op) {
  return (operation.op & op) != 0;
}
inline constexpr uint32_t kGinSignalOps = device::kGinSignalInc | device::kGinSignalAdd;

}  // namespace tutti
