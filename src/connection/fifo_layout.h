#pragma once

// The layout of a FIFO in memory, in plain numbers: the part of connection/fifo.h that kernels on
// GPUs know too. fifo.h checks that its types agree with these numbers.
//
// Offsets are in bytes; lines have 64:
//     0  uint64_t head: how many chunks the consumer has released
//   128  FifoSlotWords[kFifoSlots], a line each
//   640  padding up to kFifoDataOffset
//  4096  data, kFifoSlots × (slot_bytes + gap_bytes)

#include <cstddef>
#include <cstdint>

#include "connection/inline_bytes.h"

namespace tutti {

// As many as NCCL has steps: enough to cover a round trip of chunks in flight.
inline constexpr int kFifoSlots = 8;
inline constexpr size_t kFifoHeadersOffset = 128;
inline constexpr size_t kFifoDataOffset = 4096;
// A bit of FifoSlotWords::bytes: the chunk lies in the slot's data area although it is small.
inline constexpr uint32_t kInDataArea = 1u << 31;

// Another bit, for FIFOs whose consumer sends the chunk on: the chunk lies in a lent buffer
// (proxy/lent_buffers.h), at the address in the first bytes of inline_data.
inline constexpr uint32_t kIsLent = 1u << 30;

// Announces a slot. fifo.h has the meaning of the words.
struct alignas(64) FifoSlotWords {
  uint64_t seq;
  uint32_t bytes;
  uint32_t op_tag;
  std::byte inline_data[kInlineBytes];
};
static_assert(sizeof(FifoSlotWords) == 64);

}  // namespace tutti
