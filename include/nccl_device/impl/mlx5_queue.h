// SPDX-License-Identifier: Apache-2.0
//
// The way in which many threads drive a queue pair of an mlx5 card (mlx5_entries.h).
//
//   reserved ── entries that a thread has taken and may be writing
//   ready ───── all entries before it are written
//   rung ────── the card has been told of all entries before it
//
// A thread adds to `reserved`, waits until the card's unfinished entries leave room, writes its
// entries, and moves `ready` behind them after all earlier threads. The lanes of a GPU's warp that
// add together do so by one addition. A thread that rings tells the card of all ready entries:
// first the doorbell record, then the doorbell. A thread that leaves the ring to a later call may
// post any number of entries, because a wait for untold entries tells the card of them. Each entry
// asks for a completion: entry i of the send queue is done when entry i of the completion queue has
// come. Both queues wrap around, each by its own size, a power of two. A send queue has no
// completions but its own, and no more entries than its completion queue.
//
// The layouts are part of the binary interface of NCCL 2.30.7. In fields of QueuePair that NCCL
// reserves, this library tells the host of a failed entry.

#ifndef NCCL_DEVICE_IMPL_MLX5_QUEUE_H_
#define NCCL_DEVICE_IMPL_MLX5_QUEUE_H_

#include "nccl_device/impl/mlx5_entries.h"

#ifdef __cplusplus

namespace tutti {
namespace device {
namespace mlx5 {

struct CompletionQueue {
  uint8_t* entries;
  uint32_t number;
  uint32_t size;
  uint32_t* doorbell_record;
  uint64_t done;  // all entries before this index are known to be done
  uint32_t mask;  // size - 1
  uint8_t entry_bytes;
  uint8_t reserved1[3];
  uint64_t reserved_index;
  uint32_t memory_type;
  uint8_t reserved2[12];
};
static_assert(sizeof(CompletionQueue) == 64, "part of the binary interface");
static_assert(offsetof(CompletionQueue, done) == 24, "part of the binary interface");
static_assert(offsetof(CompletionQueue, reserved_index) == 40, "part of the binary interface");

struct QueuePair {
  uint64_t reserved;
  uint64_t ready;
  uint64_t rung;
  uint32_t number;
  // The number in the forms for control segments: shifted, big endian, and with a number of
  // segments.
  uint32_t number_shifted;
  uint32_t number_shifted_big_endian;
  uint32_t control_of_segments[5];
  int lock;  // 1: a thread rings.
  uint16_t size;
  uint16_t mask;  // size - 1
  Entry* entries;
  uint32_t* doorbell_record;
  uint64_t* doorbell;
  uint8_t reserved1[8];
  uint64_t failed;    // 0, or the index of the first entry known to have failed, plus 1
  uint32_t syndrome;  // of the failed entry
  uint8_t reserved2[52];
  CompletionQueue completions;
  uint8_t reserved3[64];
  uint32_t nic_handler;
  uint32_t memory_type;
};
static_assert(sizeof(QueuePair) == 296, "part of the binary interface");
static_assert(offsetof(QueuePair, number) == 24, "part of the binary interface");
static_assert(offsetof(QueuePair, lock) == 56, "part of the binary interface");
static_assert(offsetof(QueuePair, entries) == 64, "part of the binary interface");
static_assert(offsetof(QueuePair, doorbell) == 80, "part of the binary interface");
static_assert(offsetof(QueuePair, completions) == 160, "part of the binary interface");
static_assert(offsetof(QueuePair, nic_handler) == 288, "part of the binary interface");

// Who rings: kernels, by the doorbell record and the doorbell.
constexpr uint32_t kRungByKernels = 2;

// The send queue's word of the doorbell record.
constexpr int kSendRecord = 1;

// Makes the state of an unused queue pair. The caller prepares the memory elsewhere: the entries of
// the completion queue begin as invalid ones, with owner 1.
NCCL_HOST_DEVICE_INLINE QueuePair MakeQueuePair(uint32_t number, Entry* entries, uint16_t size,
                                                uint32_t* doorbell_record, uint64_t* doorbell,
                                                uint8_t* completions, uint32_t completions_number,
                                                uint32_t completions_size) {
  QueuePair pair = {};
  pair.number = number;
  pair.number_shifted = number << 8;
  pair.number_shifted_big_endian = BigEndian(number << 8);
  for (uint32_t segments = 1; segments <= 5; ++segments)
    pair.control_of_segments[segments - 1] = BigEndian(number << 8 | segments);
  pair.size = size;
  pair.mask = static_cast<uint16_t>(size - 1);
  pair.entries = entries;
  pair.doorbell_record = doorbell_record + kSendRecord;
  pair.doorbell = doorbell;
  pair.completions.entries = completions;
  pair.completions.number = completions_number;
  pair.completions.size = completions_size;
  pair.completions.mask = completions_size - 1;
  pair.completions.entry_bytes = kEntryBytes;
  pair.nic_handler = kRungByKernels;
  return pair;
}

}  // namespace mlx5
}  // namespace device
}  // namespace tutti

#if TUTTI_DEVICE_API

#include "nccl_device/impl/target.h"
#include "nccl_device/impl/window_check.h"

namespace tutti {
namespace device {
namespace mlx5 {

// The threads that post to a queue at the same time (ncclGinResourceSharingMode).
enum class Sharing : uint8_t { kGpu = 0, kBlock = 1, kThread = 2 };

// Posts to a queue pair and waits for entries, for one thread. Waits end early, and then return
// false, when the communicator is aborted or an entry of the queue has failed.
class SendQueue {
 public:
  NCCL_DEVICE_INLINE SendQueue(QueuePair* pair, Sharing sharing, uint32_t* abort_flag)
      : pair_(pair), sharing_(sharing), abort_flag_(abort_flag) {}

  NCCL_DEVICE_INLINE uint32_t Size() const { return uint32_t{pair_->mask} + 1; }

  // Takes any number of successive entries, which must all be written and submitted in their order.
  // The queue may not have room for them yet.
  NCCL_DEVICE_INLINE Position Claim(uint32_t count) const {
    return {LoadConstant(&pair_->number), Take(count)};
  }

  // Waits until the card has finished the former entries in the places of `count` claimed ones, at
  // most the queue's size; with `has_room` the caller knows that the card has, and the call only
  // takes note. The entries of this queue wait for entries of `ahead`, which may be null.
  NCCL_DEVICE_INLINE bool AwaitRoom(Position first, uint32_t count, bool has_room,
                                    const SendQueue* ahead = nullptr) const {
    const uint64_t end = first.index + count, size = Size();
    if (end <= size) return true;
    if (!has_room) return AwaitDone(end - size - 1, ahead);
    const auto done = Word(&pair_->completions.done);
    if (done.load(cuda::memory_order_relaxed) < end - size)
      done.fetch_max(end - size, cuda::memory_order_acq_rel);
    return true;
  }

  // Takes `count` entries, at most the queue's size, and waits for room, unless the caller knows of
  // room.
  NCCL_DEVICE_INLINE bool Reserve(uint32_t count, bool has_room, Position* first) const {
    *first = Claim(count);
    return AwaitRoom(*first, count, has_room);
  }

  NCCL_DEVICE_INLINE void Write(uint64_t index, const Entry& entry) const {
    Entry* const to = LoadEntries() + (index & (Size() - 1));
    *to = entry;
  }

  // Marks the entries as written, and tells the card of all ready entries, unless a later call will
  // tell. In a checked build, waits until the card has done them.
  NCCL_DEVICE_INLINE bool Submit(Position first, uint32_t count, bool ring) const {
    if (!MarkReady(first.index, count)) return false;
    if (!ring) return true;
    if (!Ring()) return false;
#if TUTTI_CHECKED_KERNELS
    if (!AwaitDone(first.index + count - 1)) return Fails(first, count);
#endif
    return true;
  }

  // Tells the card of all ready entries.
  NCCL_DEVICE_INLINE bool Ring() const {
    const cuda::atomic_ref<int, cuda::thread_scope_device> lock(pair_->lock);
    if (sharing_ != Sharing::kThread) {
      WaitRounds rounds(abort_flag_);
      while (lock.exchange(1, cuda::memory_order_acquire) != 0)
        if (!rounds.Another()) return false;
    }
    const uint64_t ready = Word(&pair_->ready).load(cuda::memory_order_acquire);
    const auto rung = Word(&pair_->rung);
    if (rung.load(cuda::memory_order_relaxed) < ready) {
      rung.store(ready, cuda::memory_order_relaxed);
      SystemWord(LoadConstant(&pair_->doorbell_record))
          .store(DoorbellRecord(ready), cuda::memory_order_release);
      StoreRegister(LoadConstant(&pair_->doorbell), Doorbell(LoadConstant(&pair_->number), ready));
    }
    if (sharing_ != Sharing::kThread) lock.store(0, cuda::memory_order_release);
    return true;
  }

  // Returns the number of entries reserved until now.
  NCCL_DEVICE_INLINE uint64_t reserved() const {
    return Word(&pair_->reserved).load(cuda::memory_order_relaxed);
  }

  // Waits until entry `index` is done, and tells the card of the entry if no call has. The bytes
  // that the entry brought are visible at the return.
  NCCL_DEVICE_INLINE bool AwaitDone(uint64_t index, const SendQueue* ahead = nullptr) const {
    const auto done = Word(&pair_->completions.done);
    bool told = false;
    const uint64_t size = LoadConstant(&pair_->completions.size);
    uint32_t* const word = reinterpret_cast<uint32_t*>(EntryOf(index) + kCompletionWordAt);
    WaitRounds rounds(abort_flag_);
    while (true) {
      const uint64_t known = done.load(cuda::memory_order_acquire);
      if (known > index) return !HasFailed(index);
      // Beyond the known progress of the card, the entry there may be from the round before.
      if (index < known + size) {
        const uint32_t seen = SystemWord(word).load(cuda::memory_order_acquire);
        const bool is_new = OwnerOf(seen) == ((index & size) != 0 ? 1 : 0);
        if (is_new && OpcodeOf(seen) != kInvalid && IsOf(index, seen)) return Note(index, seen);
      }
      if (!told && !TellUpTo(index, ahead, &told)) return false;
      if (HasFailed(index) || !rounds.Another()) return false;
    }
  }

 private:
  static NCCL_DEVICE_INLINE cuda::atomic_ref<uint64_t, cuda::thread_scope_device> Word(
      uint64_t* word) {
    return cuda::atomic_ref<uint64_t, cuda::thread_scope_device>(*word);
  }
  template <typename T>
  static NCCL_DEVICE_INLINE cuda::atomic_ref<T, cuda::thread_scope_system> SystemWord(T* word) {
    return cuda::atomic_ref<T, cuda::thread_scope_system>(*word);
  }

  // Adds to `reserved` and returns the old value. Lanes of a warp that call together with the same
  // count and queue get their entries in the order of the lanes.
  NCCL_DEVICE_INLINE uint64_t Take(uint32_t count) const {
    const auto counter = Word(&pair_->reserved);
    if (sharing_ == Sharing::kThread) {
      const uint64_t first = counter.load(cuda::memory_order_relaxed);
      counter.store(first + count, cuda::memory_order_relaxed);
      return first;
    }
#ifdef __CUDA_ARCH__
    const unsigned here = __activemask();
    const unsigned alike = __match_any_sync(here, reinterpret_cast<unsigned long long>(pair_)) &
                           __match_any_sync(here, count);
    unsigned lower;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lower));
    const auto before = static_cast<uint32_t>(__popc(alike & lower));
    unsigned long long first = 0;
    if (before == 0)
      first = counter.fetch_add(uint64_t{count} * static_cast<uint32_t>(__popc(alike)),
                                cuda::memory_order_relaxed);
    first = __shfl_sync(alike, first, __ffs(static_cast<int>(alike)) - 1);
    return first + uint64_t{count} * before;
#else
    return counter.fetch_add(count, cuda::memory_order_relaxed);
#endif
  }

  // Tells the card of entry `index` once the entry is ready, and before of the ready entries of
  // `ahead`, which include those that the entry waits for. Sets `told` when the card has been told.
  NCCL_DEVICE_INLINE bool TellUpTo(uint64_t index, const SendQueue* ahead, bool* told) const {
    *told = ahead == nullptr && Word(&pair_->rung).load(cuda::memory_order_relaxed) > index;
    if (*told || Word(&pair_->ready).load(cuda::memory_order_acquire) <= index) return true;
    *told = true;
    return (ahead == nullptr || ahead->Ring()) && Ring();
  }

#if TUTTI_CHECKED_KERNELS
  // Returns false. After a failed entry, a kernel of a GPU prints a message and ends the program;
  // for a kernel of a host the library does so.
  NCCL_DEVICE_INLINE bool Fails([[maybe_unused]] Position first,
                                [[maybe_unused]] uint32_t count) const {
#ifdef __CUDA_ARCH__
    const uint64_t failed = Word(&pair_->failed).load(cuda::memory_order_acquire);
    if (failed == 0) return false;
    printf(
        "tutti: block %u, thread %u: of the entries %llu to %llu of queue pair %#x the card has "
        "failed %llu (syndrome %#x)\n",
        blockIdx.x, threadIdx.x, static_cast<unsigned long long>(first.index),
        static_cast<unsigned long long>(first.index + count - 1), first.queue,
        static_cast<unsigned long long>(failed - 1), pair_->syndrome);
    __trap();
#endif
    return false;
  }
#endif
  NCCL_DEVICE_INLINE Entry* LoadEntries() const { return LoadConstant(&pair_->entries); }
  NCCL_DEVICE_INLINE uint8_t* EntryOf(uint64_t index) const {
    return LoadConstant(&pair_->completions.entries) +
           (index & LoadConstant(&pair_->completions.mask)) * kEntryBytes;
  }

  // Returns whether a completion belongs to entry `index`. The word of `completion` has the owner's
  // bit, by which the entry counts as new, and the index. Before compute capability 9.0 a GPU may
  // see part of a card's write to a word: the owner's bit may be new and the index still from the
  // round before. From 9.0 on a GPU sees the whole.
  static NCCL_DEVICE_INLINE bool IsOf([[maybe_unused]] uint64_t index,
                                      [[maybe_unused]] uint32_t completion) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return true;
#else
    return IndexOf(completion) == (index & 0xffff);
#endif
  }

  // Returns whether an entry before or at `index` has failed. A card executes no entry after a
  // failed one.
  NCCL_DEVICE_INLINE bool HasFailed(uint64_t index) const {
    const uint64_t failed = Word(&pair_->failed).load(cuda::memory_order_relaxed);
    return failed != 0 && failed - 1 <= index;
  }

  // Notes the outcome in an entry's completion.
  NCCL_DEVICE_INLINE bool Note(uint64_t index, uint32_t completion) const {
    const bool failed = OpcodeOf(completion) == kRequesterError;
    if (failed) {
      pair_->syndrome = EntryOf(index)[kSyndromeAt];
      uint64_t none = 0;
      Word(&pair_->failed).compare_exchange_strong(none, index + 1, cuda::memory_order_release);
    }
    Word(&pair_->completions.done).fetch_max(index + 1, cuda::memory_order_acq_rel);
    return !failed && !HasFailed(index);
  }

  NCCL_DEVICE_INLINE bool MarkReady(uint64_t first, uint32_t count) const {
    const auto ready = Word(&pair_->ready);
    if (sharing_ != Sharing::kThread) {
      WaitRounds rounds(abort_flag_);
      while (ready.load(cuda::memory_order_acquire) != first)
        if (!rounds.Another()) return false;
    }
    ready.store(first + count, cuda::memory_order_release);
    return true;
  }

  QueuePair* pair_;
  Sharing sharing_;
  uint32_t* abort_flag_;
};

}  // namespace mlx5
}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // __cplusplus

#endif  // NCCL_DEVICE_IMPL_MLX5_QUEUE_H_
