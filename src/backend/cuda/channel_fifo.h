#pragma once

// A block's access to FIFOs (connection/fifo.h), over any transport.
//
//   producer  wait until head + kFifoSlots > passed ─ write the slot ─ fence ─ seq = passed + 1
//   consumer  wait until seq = passed + 1 ─ read the slot ─ head = passed + 1
//
// All threads of the block call all functions alike, unless a function's comment says otherwise.
// Chunks of any length lie in the slots' data area (FifoPlace, proxy/proxy.h).

#include "backend/cuda/channel_args.h"
#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

// The shared part of a block's ends of FIFOs: waiting, and giving up.
class ChannelBlock {
 public:
  TUTTI_HD explicit ChannelBlock(const ChannelCommon& common)
      : common_(common), failed_(*common.given_up != 0) {}

  TUTTI_HD bool failed() const { return failed_; }
  // Keeps the failure for the next kernel. REQUIRES: the block has passed a barrier since it began.
  TUTTI_HD void KeepFailure() {
    if (failed_ && Lanes::index() == 0) StoreFlag(common_.given_up, 1);
  }

  // Waits until is_there() holds. Called by one thread, before a barrier.
  template <class IsThere>
  TUTTI_HD void Await(IsThere is_there) {
    TUTTI_UNROLL_BY(1)
    for (uint32_t polls = 1; !failed_ && !is_there(); ++polls) {
      Lanes::Relax();
      // Most awaited words lie in the host's memory, like abort_word. Reading both each time would
      // halve the pace.
      if (polls % kLookEvery == 0 && IsRaised(common_.abort_word)) failed_ = true;
    }
  }
  TUTTI_HD void ShareFailure() { failed_ = Lanes::SyncAny(failed_); }
  TUTTI_HD uint32_t op_tag() const { return common_.op_tag; }

 private:
  static constexpr uint32_t kLookEvery = 256;

  const ChannelCommon& common_;
  bool failed_;
};

class DeviceProducer {
 public:
  // The kernel has passed `chunks` chunks before.
  TUTTI_HD explicit DeviceProducer(const DeviceFifo& fifo, uint64_t chunks = 0) : fifo_(fifo) {
    if (fifo.count == nullptr) return;
    passed_ = fifo.count->passed + chunks;
    head_ = fifo.count->head;
  }

  // Called by one thread, always the same thread.
  TUTTI_HD void AwaitRoom(ChannelBlock& block) {
    if (head_ + kFifoSlots > passed_) return;
    block.Await([&] {
      head_ = LoadFlagAcquire(fifo_.head);
      return head_ + kFifoSlots > passed_;
    });
    fifo_.count->head = head_;
  }
  TUTTI_HD std::byte* slot() const { return fifo_.data + passed_ % kFifoSlots * fifo_.slot_stride; }
  // Returns the place where the consumer can read a chunk directly: in a collective's input, or in
  // its output. A null argument says that the chunk does not lie in that buffer. Returns null when
  // the chunk must be written into the slot.
  TUTTI_HD const std::byte* LentPlace(const std::byte* input, const std::byte* output) const {
    if (input != nullptr && (fifo_.lends & kLendsInput) != 0) return input;
    return (fifo_.lends & kLendsOutput) != 0 ? output : nullptr;
  }
  // Called by one thread: Describe before the thread's fence, Announce after it.
  TUTTI_HD void Describe(size_t bytes, uint32_t op_tag) const {
    FifoSlotWords& header = fifo_.headers[passed_ % kFifoSlots];
    header.bytes = static_cast<uint32_t>(bytes) | kInDataArea;
    header.op_tag = op_tag;
  }
  // Describes a chunk that the consumer sends directly from a lent buffer (proxy/lent_buffers.h).
  // The chunk must stay in the buffer until AwaitAll has returned.
  TUTTI_HD void DescribeLent(const std::byte* chunk, size_t bytes, uint32_t op_tag) const {
    Describe(bytes, op_tag);
    FifoSlotWords& header = fifo_.headers[passed_ % kFifoSlots];
    header.bytes |= kIsLent;
    *reinterpret_cast<const std::byte**>(header.inline_data) = chunk;
  }
  // Describes a chunk at `lent`, or in the slot where `lent` is null.
  TUTTI_HD void DescribeAt(const std::byte* lent, size_t bytes, uint32_t op_tag) const {
    if (lent != nullptr)
      DescribeLent(lent, bytes, op_tag);
    else
      Describe(bytes, op_tag);
  }
  // Waits until no buffer is lent any more. Called by one thread, after all chunks were passed.
  TUTTI_HD void AwaitLent(ChannelBlock& block) {
    if (fifo_.lends != 0) AwaitAll(block);
  }
  // Waits until the consumer has released all passed chunks. Called by one thread.
  TUTTI_HD void AwaitAll(ChannelBlock& block) {
    block.Await([&] {
      head_ = LoadFlagAcquire(fifo_.head);
      return head_ >= passed_;
    });
    fifo_.count->head = head_;
  }
  TUTTI_HD void Announce() const {
    StoreFlag(&fifo_.headers[passed_ % kFifoSlots].seq, passed_ + 1);
  }
  TUTTI_HD void Pass() { ++passed_; }
  // Called by one thread.
  TUTTI_HD void KeepCount() const {
    if (fifo_.count != nullptr) fifo_.count->passed = passed_;
  }

 private:
  const DeviceFifo& fifo_;
  uint64_t passed_ = 0;
  uint64_t head_ = 0;  // the last value that the waiting thread has read
};

class DeviceConsumer {
 public:
  // The kernel has passed `chunks` chunks before.
  TUTTI_HD explicit DeviceConsumer(const DeviceFifo& fifo, uint64_t chunks = 0)
      : fifo_(fifo), passed_((fifo.count != nullptr ? fifo.count->passed : 0) + chunks) {}

  // Called by one thread.
  TUTTI_HD void AwaitChunk(ChannelBlock& block) {
    const uint64_t* const seq = &fifo_.headers[passed_ % kFifoSlots].seq;
    block.Await([&] { return LoadFlagAcquire(seq) == passed_ + 1; });
  }
  // Returns the address of the chunk. REQUIRES: AwaitChunk, and a barrier after it.
  TUTTI_HD const std::byte* slot() const {
    return fifo_.data + passed_ % kFifoSlots * fifo_.slot_stride;
  }
  // Called by one thread, after a barrier behind the reads. No fence is needed, because the read
  // values were used before the barrier and must have come by then.
  TUTTI_HD void Release() const { StoreFlag(fifo_.head, passed_ + 1); }
  TUTTI_HD void Pass() { ++passed_; }
  // Called by one thread.
  TUTTI_HD void KeepCount() const {
    if (fifo_.count != nullptr) fifo_.count->passed = passed_;
  }

 private:
  const DeviceFifo& fifo_;
  uint64_t passed_;
};

}  // namespace tutti::cuda
