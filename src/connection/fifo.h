#pragma once

// The FIFO: a circular buffer of slots through which a rank sends chunks to another. Every
// transport gives a kernel this shape.
//
//   producer                                   consumer
//   TryAcquire → fill → Publish   ──slot──▶   TryPeek → read → Release
//            ▲                                              │
//            └────────────────────head──────────────────────┘
//
// With shared memory both ends map the same FIFO. With a network each end has a FIFO of its own,
// and the proxy is the consumer of the sender's and the producer of the receiver's.
//
// Each slot announces itself with its own sequence number, so a small chunk and its announcement
// travel in the same cache line: up to kInlineBytes of payload lie in the header's line, longer
// payloads in the slot's data area. A producer may put small chunks into the data area too
// (kInDataArea), for NCCL_PROTO=Simple.
//
// Memory layout of a FIFO (offsets in bytes, all lines of 64):
//     0  FifoControl
//   128  SlotHeader[kFifoSlots]
//   640  padding up to kFifoDataOffset
//  4096  data, kFifoSlots × (slot_bytes + gap_bytes)
// Fresh memory is all zeroes, which is an empty FIFO. FifoReceiver trusts nothing that it reads
// there but `bytes`, which it clamps to slot_bytes.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/wait.h"
#include "connection/fifo_layout.h"

namespace tutti {

struct alignas(64) SlotHeader {
  // n + 1 once chunk n lies in this slot; chunks are counted from 0 over the FIFO's life.
  std::atomic<uint64_t> seq;
  uint32_t bytes;   // The length of the chunk, with kInDataArea.
  uint32_t op_tag;  // The operation of the chunk by the producer's word (watch/signature.h).
  std::byte inline_data[kInlineBytes];
};
static_assert(sizeof(SlotHeader) == sizeof(FifoSlotWords));
static_assert(offsetof(SlotHeader, bytes) == offsetof(FifoSlotWords, bytes));
static_assert(offsetof(SlotHeader, op_tag) == offsetof(FifoSlotWords, op_tag));
static_assert(offsetof(SlotHeader, inline_data) == offsetof(FifoSlotWords, inline_data));

struct FifoControl {
  alignas(64) std::atomic<uint64_t> head;  // chunks released, written by the consumer
  alignas(64) SleepFlag consumer_sleepers;
  SleepFlag producer_sleepers;
};
static_assert(sizeof(FifoControl) == kFifoHeadersOffset);

// Says where a FIFO lies. A plain value; the memory belongs to the transport that made it.
struct FifoView {
  std::byte* base = nullptr;
  size_t slot_bytes = 0;
  size_t gap_bytes = 0;  // Each slot is followed by room for the transport's additions.
  // Where the slots lie; null: behind the headers. Elsewhere they may be where only a GPU and a NIC
  // reach them.
  std::byte* slots = nullptr;

  static constexpr size_t BytesFor(size_t slot_bytes, size_t gap_bytes = 0) {
    return kFifoDataOffset + kFifoSlots * (slot_bytes + gap_bytes);
  }
  FifoControl& control() const { return *reinterpret_cast<FifoControl*>(base); }
  SlotHeader& header(uint64_t chunk) const {
    return reinterpret_cast<SlotHeader*>(base + sizeof(FifoControl))[chunk % kFifoSlots];
  }
  std::byte* data(uint64_t chunk) const {
    std::byte* const begin = slots != nullptr ? slots : base + kFifoDataOffset;
    return begin + (chunk % kFifoSlots) * (slot_bytes + gap_bytes);
  }
};

// The producer's end. At most one thread at a time.
class FifoSender {
 public:
  FifoSender() = default;
  explicit FifoSender(FifoView view) : view_(view) {}

  // Returns where the next chunk of `bytes` (<= slot_bytes) goes, or null while the FIFO is full.
  // `inline_small`: a chunk of up to kInlineBytes goes into the header's line.
  std::byte* TryAcquire(size_t bytes, bool inline_small = true) {
    if (next_ - head_ >= kFifoSlots) {
      head_ = view_.control().head.load(std::memory_order_acquire);
      if (next_ - head_ >= kFifoSlots) return nullptr;
    }
    inline_small_ = inline_small;
    return bytes <= kInlineBytes && inline_small ? view_.header(next_).inline_data
                                                 : view_.data(next_);
  }
  // Announces the chunk written into the result of TryAcquire(bytes).
  void Publish(size_t bytes, uint32_t op_tag) {
    SlotHeader& header = view_.header(next_);
    header.bytes = static_cast<uint32_t>(bytes) | (inline_small_ ? 0 : kInDataArea);
    header.op_tag = op_tag;
    header.seq.store(++next_, std::memory_order_release);
    WakeSleepers(header.seq, view_.control().consumer_sleepers);
  }
  // Sleeps until the consumer releases a chunk, or `timeout_ns`.
  void SleepForRoom(int64_t timeout_ns) {
    SleepUntilChanged(view_.control().head, head_, view_.control().producer_sleepers, timeout_ns);
  }
  uint64_t published() const { return next_; }
  // Returns how many chunks the consumer has released, read afresh.
  uint64_t released() const { return view_.control().head.load(std::memory_order_acquire); }
  const FifoView& view() const { return view_; }

 private:
  FifoView view_;
  uint64_t next_ = 0;
  uint64_t head_ = 0;         // the consumer's head as last seen
  bool inline_small_ = true;  // The last TryAcquire was told this.
};

// A chunk as the consumer sees it.
struct FifoChunk {
  const std::byte* data = nullptr;  // null: no chunk yet
  size_t bytes = 0;
  uint32_t op_tag = 0;
};

// The consumer's end. At most one thread at a time.
class FifoReceiver {
 public:
  FifoReceiver() = default;
  explicit FifoReceiver(FifoView view) : view_(view) {}

  // Returns the next chunk, or the chunk `ahead` (< kFifoSlots) places later.
  FifoChunk TryPeek(uint64_t ahead = 0) const {
    const uint64_t chunk = next_ + ahead;
    const SlotHeader& header = view_.header(chunk);
    if (header.seq.load(std::memory_order_acquire) != chunk + 1) return {};
    // Read once: the producer may be another process, and only checked values may be used.
    const uint32_t read = *static_cast<const volatile uint32_t*>(&header.bytes);
    const size_t claimed = read & ~kInDataArea;
    const size_t bytes = claimed < view_.slot_bytes ? claimed : view_.slot_bytes;
    const bool is_inline = bytes <= kInlineBytes && (read & kInDataArea) == 0;
    return {is_inline ? header.inline_data : view_.data(chunk), bytes, header.op_tag};
  }
  // Gives the slot of TryPeek's chunk back to the producer.
  void Release() {
    ++next_;
    view_.control().head.store(next_, std::memory_order_release);
    WakeSleepers(view_.control().head, view_.control().producer_sleepers);
  }
  // Sleeps until the next chunk is announced, or `timeout_ns`.
  void SleepForChunk(int64_t timeout_ns) {
    const std::atomic<uint64_t>& seq = view_.header(next_).seq;
    const uint64_t seen = seq.load(std::memory_order_relaxed);
    if (seen == next_ + 1) return;
    SleepUntilChanged(seq, seen, view_.control().consumer_sleepers, timeout_ns);
  }
  uint64_t released() const { return next_; }
  const FifoView& view() const { return view_; }

 private:
  FifoView view_;
  uint64_t next_ = 0;
};

}  // namespace tutti
