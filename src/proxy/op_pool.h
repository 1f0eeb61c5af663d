#pragma once

// The operations of a connection that are begun and not yet done. An operation is a run of chunks,
// and passes three states, which follow from three counters of the connection:
//
//   state        at the sending end                     at the receiving end
//   posted       its chunks have a slot and are with the network
//   transmitted  the network has copied or sent them    they lie in their slots
//   done         the slots are free again               the slots are announced to the kernel
//
// docs/proxy.md has the table of transitions. The pool is bounded: the chunks of at most kFifoSlots
// operations can be in a FIFO, a driver may have moved as many more on before their retirement, and
// a last operation is being begun.
//
// Threads: Add by the kernel's thread; Retire by the thread that drives the connection; the rest by
// any.

#include <array>
#include <atomic>
#include <cstdint>

#include "connection/fifo.h"

namespace tutti {

struct ProxyOp {
  uint64_t first_chunk = 0;  // counted over the connection's life
  uint64_t chunks = 0;       // 0: no operation
  uint32_t op_tag = 0;
};

class OpPool {
 public:
  static constexpr uint64_t kOps = uint64_t{4} * kFifoSlots;

  // Adds an operation. Returns false when kOps operations are under way: their chunks cannot all
  // have been published, so the caller has lost count.
  bool Add(uint64_t chunks, uint32_t op_tag) {
    if (chunks == 0) return true;
    const uint64_t number = added_.load(std::memory_order_relaxed);
    if (number - retired_.load(std::memory_order_acquire) == kOps) return false;
    const uint64_t first = end_.load(std::memory_order_relaxed);
    Slot& slot = slots_[number % kOps];
    slot.first_chunk.store(first, std::memory_order_relaxed);
    slot.chunks.store(chunks, std::memory_order_relaxed);
    slot.op_tag.store(op_tag, std::memory_order_relaxed);
    added_.store(number + 1, std::memory_order_release);
    end_.store(first + chunks, std::memory_order_release);
    return true;
  }

  // Forgets the operations whose chunks are all among the first `done` of the connection.
  void Retire(uint64_t done) {
    uint64_t number = retired_.load(std::memory_order_relaxed);
    const uint64_t added = added_.load(std::memory_order_acquire);
    while (number < added && End(slots_[number % kOps]) <= done) ++number;
    retired_.store(number, std::memory_order_release);
  }

  // Returns how many chunks the operations begun so far have in all.
  uint64_t end() const { return end_.load(std::memory_order_acquire); }

  // Returns the operation of chunk number `chunk`, if begun and not retired. While operations come
  // and go the answer may be a neighbouring operation, but not for the thread that retires them.
  ProxyOp Find(uint64_t chunk) const {
    const uint64_t added = added_.load(std::memory_order_acquire);
    for (uint64_t number = retired_.load(std::memory_order_acquire); number < added; ++number) {
      const Slot& slot = slots_[number % kOps];
      if (End(slot) > chunk) {
        return {slot.first_chunk.load(std::memory_order_relaxed),
                slot.chunks.load(std::memory_order_relaxed),
                slot.op_tag.load(std::memory_order_relaxed)};
      }
    }
    return {};
  }

 private:
  struct Slot {
    std::atomic<uint64_t> first_chunk = 0;
    std::atomic<uint64_t> chunks = 0;
    std::atomic<uint32_t> op_tag = 0;
  };
  static uint64_t End(const Slot& slot) {
    return slot.first_chunk.load(std::memory_order_relaxed) +
           slot.chunks.load(std::memory_order_relaxed);
  }

  std::array<Slot, kOps> slots_;
  std::atomic<uint64_t> added_ = 0;
  std::atomic<uint64_t> retired_ = 0;
  std::atomic<uint64_t> end_ = 0;
};

}  // namespace tutti
