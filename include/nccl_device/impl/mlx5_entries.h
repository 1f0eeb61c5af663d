// SPDX-License-Identifier: Apache-2.0
//
// The formats of requests to and answers from mlx5 network cards (ConnectX, BlueField), for kernels
// that drive a card themselves. Source: NVIDIA's "Adapters Programmer's Reference Manual", and
// rdma-core's mlx5dv.h, with whose structs the tests compare every image.
//
// An entry of a send queue has 64 bytes, four segments of 16. The first is the control segment; the
// rest depends on the operation:
//
//   operation        segments                                                              number
//   NOP              control                                                                1
//   WRITE, READ      control, remote address, local buffer                                  3
//   WRITE of a value control, remote address, count and up to 28 bytes                      3 or 4
//   FETCH_ADD        control, remote address, what is added, buffer for the old value        4
//   WAIT             control, {0, 0, index, completion queue}                               2
//   DUMP             control, local buffer                                                  2
//
//   word  control segment             remote address           local buffer
//   0     index << 8 | operation      address, high half       bytes
//   1     queue << 8 | segments       address, low half        key
//   2     8: ask for a completion     key                      address, high half
//   3     0                           0                        address, low half
//
// All numbers are big endian. Keys are kept as the card has them, big endian too.
//
// An entry of a completion queue has 64 bytes as well, of which kernels read the last four: the low
// 16 bits of the done entry's index, a signature, and opcode << 4 | owner. The owner bit changes
// with each round of the card, and a kernel thereby distinguishes new entries from old ones.

#ifndef NCCL_DEVICE_IMPL_MLX5_ENTRIES_H_
#define NCCL_DEVICE_IMPL_MLX5_ENTRIES_H_

#include <stddef.h>
#include <stdint.h>

#include "nccl_device/utility.h"

#ifdef __cplusplus

namespace tutti {
namespace device {
namespace mlx5 {

enum Operation : uint8_t {
  kNop = 0x00,
  kWrite = 0x08,
  kWait = 0x0f,
  kRead = 0x10,
  kFetchAdd = 0x12,
  kDump = 0x23,
};

// Opcodes of completions.
constexpr uint32_t kDone = 0;
constexpr uint32_t kRequesterError = 13;
constexpr uint32_t kInvalid = 15;  // of an entry never written by the card

constexpr uint32_t kAskForCompletion = 8;
constexpr uint32_t kInlineMark = 0x80000000;
constexpr size_t kMostInlineBytes = 28;
constexpr size_t kEntryBytes = 64;

NCCL_HOST_DEVICE_INLINE constexpr uint32_t BigEndian(uint32_t value) {
  return value << 24 | (value & 0xff00) << 8 | (value >> 8 & 0xff00) | value >> 24;
}
NCCL_HOST_DEVICE_INLINE constexpr uint32_t HighHalf(uint64_t value) {
  return BigEndian(static_cast<uint32_t>(value >> 32));
}
NCCL_HOST_DEVICE_INLINE constexpr uint32_t LowHalf(uint64_t value) {
  return BigEndian(static_cast<uint32_t>(value));
}

struct alignas(16) Entry {
  uint32_t words[kEntryBytes / sizeof(uint32_t)];
};
static_assert(sizeof(Entry) == kEntryBytes, "what a card reads");

// Memory for a card: an address, or an offset in a window, and the key.
struct Place {
  uint64_t address;
  uint32_t key;
};

// The position of an entry: the number of its queue, and its index, of which the card sees 16 bits.
struct Position {
  uint32_t queue;
  uint64_t index;
};

NCCL_HOST_DEVICE_INLINE Entry ControlOnly(Position at, Operation operation, uint32_t segments) {
  Entry entry = {};
  entry.words[0] = BigEndian((static_cast<uint32_t>(at.index) & 0xffff) << 8 | operation);
  entry.words[1] = BigEndian(at.queue << 8 | segments);
  entry.words[2] = BigEndian(kAskForCompletion);
  return entry;
}

// Write a segment from a word on.
NCCL_HOST_DEVICE_INLINE void PutRemote(Entry* entry, int word, Place place) {
  entry->words[word] = HighHalf(place.address);
  entry->words[word + 1] = LowHalf(place.address);
  entry->words[word + 2] = place.key;
}
NCCL_HOST_DEVICE_INLINE void PutBuffer(Entry* entry, int word, uint32_t bytes, Place place) {
  entry->words[word] = BigEndian(bytes);
  entry->words[word + 1] = place.key;
  entry->words[word + 2] = HighHalf(place.address);
  entry->words[word + 3] = LowHalf(place.address);
}

NCCL_HOST_DEVICE_INLINE Entry MakeNop(Position at) { return ControlOnly(at, kNop, 1); }

// `operation` is kWrite or kRead; up to 1 GiB.
NCCL_HOST_DEVICE_INLINE Entry MakeTransfer(Position at, Operation operation, Place remote,
                                           Place local, uint32_t bytes) {
  Entry entry = ControlOnly(at, operation, 3);
  PutRemote(&entry, 4, remote);
  PutBuffer(&entry, 8, bytes, local);
  return entry;
}

// Writes a value out of the entry. REQUIRES: at most 8 bytes, the lowest first.
NCCL_HOST_DEVICE_INLINE Entry MakeWriteOfValue(Position at, Place remote, uint64_t value,
                                               uint32_t bytes) {
  Entry entry = ControlOnly(at, kWrite, 3);
  PutRemote(&entry, 4, remote);
  entry.words[8] = BigEndian(bytes | kInlineMark);
  const uint64_t kept = bytes < sizeof(value) ? value & ((uint64_t{1} << 8 * bytes) - 1) : value;
  entry.words[9] = static_cast<uint32_t>(kept);
  entry.words[10] = static_cast<uint32_t>(kept >> 32);
  return entry;
}

// Adds to an aligned word of 8 bytes. The old value goes to `old`, which nobody reads.
NCCL_HOST_DEVICE_INLINE Entry MakeFetchAdd(Position at, Place remote, uint64_t added, Place old) {
  Entry entry = ControlOnly(at, kFetchAdd, 4);
  PutRemote(&entry, 4, remote);
  entry.words[8] = HighHalf(added);
  entry.words[9] = LowHalf(added);
  PutBuffer(&entry, 12, sizeof(uint64_t), old);
  return entry;
}

// Holds up the queue until the entry `index` of another queue is done, whose completions go to
// `completion_queue`.
NCCL_HOST_DEVICE_INLINE Entry MakeWait(Position at, uint64_t index, uint32_t completion_queue) {
  Entry entry = ControlOnly(at, kWait, 2);
  entry.words[6] = BigEndian(static_cast<uint32_t>(index));
  entry.words[7] = BigEndian(completion_queue);
  return entry;
}

// Has the card read a buffer and drop the bytes, behind all its earlier writes into the memory.
NCCL_HOST_DEVICE_INLINE Entry MakeDump(Position at, Place local, uint32_t bytes) {
  Entry entry = ControlOnly(at, kDump, 2);
  PutBuffer(&entry, 4, bytes, local);
  return entry;
}

// The notice of ready entries up to `end`: the word of the doorbell record, and the doorbell
// itself.
NCCL_HOST_DEVICE_INLINE uint32_t DoorbellRecord(uint64_t end) {
  return BigEndian(static_cast<uint32_t>(end) & 0xffff);
}
NCCL_HOST_DEVICE_INLINE uint64_t Doorbell(uint32_t queue, uint64_t end) {
  return uint64_t{BigEndian(queue << 8)} << 32 |
         BigEndian((static_cast<uint32_t>(end) & 0xffff) << 8);
}

// The place of the word of a completion that kernels load.
constexpr size_t kCompletionWordAt = kEntryBytes - sizeof(uint32_t);
NCCL_HOST_DEVICE_INLINE uint32_t OpcodeOf(uint32_t completion) { return completion >> 28; }
NCCL_HOST_DEVICE_INLINE uint32_t OwnerOf(uint32_t completion) { return completion >> 24 & 1; }
NCCL_HOST_DEVICE_INLINE uint32_t IndexOf(uint32_t completion) {
  return BigEndian(completion) >> 16;
}
// The place of the syndrome in a completion with an error.
constexpr size_t kSyndromeAt = 55;

}  // namespace mlx5
}  // namespace device
}  // namespace tutti

#endif  // __cplusplus

#endif  // NCCL_DEVICE_IMPL_MLX5_ENTRIES_H_
