#pragma once

// Says how a FIFO lies in memory, in plain numbers: the part of connection/fifo.h that kernels on
// GPUs know too. fifo.h checks that its types agree with them.
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

// There are as many as NCCL has steps: enough to cover one round trip of chunks in flight.
inline constexpr int kFifoSlots = 8;
inline constexpr size_t kFifoHeadersOffset = 128;
inline constexpr size_t kFifoDataOffset = 4096;
// A bit of FifoSlotWords::bytes: the chunk lies in the slot's data area although it is small.
inline constexpr uint32_t kInDataArea = 1u << 31;

// Another one, of FIFOs whose consumer sends the chunk on: it lies where the address at the
// beginning of inline_data says, in a buffer that was lent (proxy/lent_buffers.h).
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
