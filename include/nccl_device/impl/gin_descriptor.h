// SPDX-License-Identifier: Apache-2.0
//
// The memory shared by a kernel and the proxy of device-initiated networking (GIN): the record of a
// context and its queues of descriptors. The layouts are NCCL 2.30.7's and part of the binary
// interface.
//
// A context has a queue for each peer: `queueSize` slots, a power of two, used in turn. To post, a
// thread adds 1 to the producer index, waits until its slot is free (index - consumer index <
// queueSize), and stores the descriptor's words. Bit 0 of every word is set in a descriptor and
// clear in a free slot, by which the proxy recognizes a descriptor that has arrived in part. The
// proxy takes descriptors in order, clears their words, and counts up the consumer index in order
// as the operations are done. Indices are 32 bits wide and wrap around.
//
//   word  bits
//   0     1..4 version, 7..63 bytes
//   1     of a value: 8..39 its bits 0..31, 40..55 its bits 32..47
//         else 1..63: offset of the source, or of the VA signal
//   2     of a value: 8..23 its bits 48..63; else 1..63: window of the source or of the VA signal
//   3, 4  1..63 offset, and window, of the destination
//   5     1..23 counter, 24..47 signal, 48..63 bits 0..15 of what is added to the signal
//   6     1 strong, 8..23 bits 16..31 and 24..55 bits 32..63 of what is added
//   7     8..23 what to do (GinOp)
//   8..15 spare
//
// A get has the remote place in the words of the source and the local place in the words of the
// target.

#ifndef NCCL_DEVICE_IMPL_GIN_DESCRIPTOR_H_
#define NCCL_DEVICE_IMPL_GIN_DESCRIPTOR_H_

#include "nccl_device/core.h"
#include "nccl_device/impl/gin_gdaki_context.h"

#ifdef __cplusplus

namespace tutti {
namespace device {

constexpr uint64_t kGinVersion = 2;
// A longer put or get is posted in pieces.
constexpr size_t kGinPieceBytes = size_t{1} << 30;

// The parts of an operation, as bits.
enum GinOp : uint32_t {
  kGinPut = 1,
  kGinWithValue = 2,
  kGinWithCounter = 4,
  kGinSignalInc = 8,
  kGinSignalAdd = 16,
  kGinVaSignal = 32,  // Without a put.
  kGinGet = 64,
  kGinFlush = 128
};

struct alignas(16) GinDescriptor {
  static constexpr int kWords = 16;
  static constexpr int kUsedWords = 8;
  uint64_t words[kWords];
};
static_assert(sizeof(GinDescriptor) == 128, "part of the binary interface");

struct GinContext {
  int nranks;
  uint32_t queueSize;
  GinDescriptor* queues;  // Queue q begins at q * queueSize.
  uint32_t* pis;
  uint32_t* cis;
  uint64_t* counters;
  uint64_t* signals;
  uint64_t* signalOffsets;  // the signals' values at their last reset
  // The numbers of issued and of visible gets. A get of this library is visible once done.
  uint32_t* lastIssuedGet;
  uint32_t* lastVisibleGet;
};
static_assert(sizeof(GinContext) == 72, "part of the binary interface");
// The first context also reads as the record of a card, as far as programs of NVIDIA's headers read
// the record: the address of the signals lies at the same place.
static_assert(offsetof(GinContext, signals) ==
                  offsetof(ncclGinGdakiGPUContext, signals_table) +
                      offsetof(ncclGinGdakiGlobalGPUBufferTable<uint64_t>, buffer),
              "part of the binary interface");

// The facts ahead of the contexts of a proxy for kernels of a host; the handle points behind them.
// Such kernels add to the signals of the LSA team themselves (gin_lsa.h).
//
// A signal has two words, and its value is their sum: the processors of the LSA team add to the
// first word, and the network adds to the second word for all further ranks. The atomic operations
// of most network cards are atomic among themselves only (IBV_ATOMIC_HCA). In a common word an
// addition could be lost.
struct GinHead {
  static constexpr uint64_t kMark = 0x74757474692d6c74;
  // 1: processors may add to words of windows. 0: a network card adds to these words, and all ranks
  // have to add by the network.
  uint64_t adds_to_windows;
  uint64_t network_signals_at;  // where the second words of signals begin in the resource window
  uint64_t mark;                // kMark where the facts hold
  uint64_t signals_at;          // where the first words of signals begin in the resource window
  void* calls;                  // for the library; null for a GPU, which has nothing ahead of it
};

// A descriptor before packing into words, and after unpacking.
struct GinOperation {
  uint32_t op;
  uint64_t bytes;
  uint64_t value;        // kGinWithValue
  uint64_t from_offset;  // Also of a VA signal.
  uint64_t from_window;  // Also of a VA signal.
  uint64_t to_offset;
  uint64_t to_window;
  uint32_t counter;
  uint32_t signal;
  uint64_t added;  // To the signal.
  bool strong;
};

// Returns `number` if it fits into `bits` bits, or else the largest such number, which names
// nothing.
NCCL_HOST_DEVICE_INLINE uint64_t Fitted(uint64_t number, int bits) {
  const uint64_t largest = UINT64_MAX >> (64 - bits);
  return number < largest ? number : largest;
}

NCCL_HOST_DEVICE_INLINE GinDescriptor PackGin(const GinOperation& o) {
  GinDescriptor packed = {};
  uint64_t* const w = packed.words;
  w[0] = kGinVersion << 1 | o.bytes << 7;
  if ((o.op & kGinWithValue) != 0) {
    w[1] = (o.value & 0xffffffffffff) << 8;
    w[2] = o.value >> 48 << 8;
  } else {
    w[1] = Fitted(o.from_offset, 63) << 1;
    w[2] = o.from_window << 1;
  }
  w[3] = Fitted(o.to_offset, 63) << 1;
  w[4] = o.to_window << 1;
  w[5] = Fitted(o.counter, 23) << 1 | Fitted(o.signal, 24) << 24 | o.added << 48;
  w[6] = (o.strong ? 2u : 0u) | (o.added >> 16 & 0xffff) << 8 | o.added >> 32 << 24;
  w[7] = uint64_t{o.op} << 8;
  for (int i = 0; i < GinDescriptor::kWords; ++i) w[i] |= 1;
  return packed;
}

NCCL_HOST_DEVICE_INLINE GinOperation UnpackGin(const uint64_t* w) {
  GinOperation o = {};
  o.op = static_cast<uint32_t>(w[7] >> 8 & 0xffff);
  o.bytes = w[0] >> 7;
  o.value = (w[1] >> 8 & 0xffffffffffff) | (w[2] >> 8 & 0xffff) << 48;
  o.from_offset = w[1] >> 1;
  o.from_window = w[2] >> 1;
  o.to_offset = w[3] >> 1;
  o.to_window = w[4] >> 1;
  o.counter = static_cast<uint32_t>(w[5] >> 1 & 0x7fffff);
  o.signal = static_cast<uint32_t>(w[5] >> 24 & 0xffffff);
  o.added = w[5] >> 48 | (w[6] >> 8 & 0xffff) << 16 | (w[6] >> 24 & 0xffffffff) << 32;
  o.strong = (w[6] >> 1 & 1) != 0;
  return o;
}

NCCL_HOST_DEVICE_INLINE uint32_t GinVersionOf(const uint64_t* w) {
  return static_cast<uint32_t>(w[0] >> 1 & 0xf);
}

}  // namespace device
}  // namespace tutti

#endif  // __cplusplus

#endif  // NCCL_DEVICE_IMPL_GIN_DESCRIPTOR_H_
