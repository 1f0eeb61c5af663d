#pragma once

// The frames of a socket connection: 24 bytes that announce a chunk, or grant slots.
//
// Format (all integers little-endian):
//     0  magic    u16   0x7554
//     2  type     u8    FrameType
//     3  sockets  u8    kStriped: how many data sockets carry the chunk; otherwise 0
//     4  op_tag   u32   kData, kStriped: handed to the receiver's slot unchanged; otherwise 0
//     8  bytes    u32   kData, kStriped: length of the chunk; otherwise 0
//    12  zero     u32
//    16  count    u64   kData, kStriped: number of the chunk, from 0 over the connection's life
//                       kGrant: how many chunks the sender may have sent in all
// A kData frame is followed by its chunk.

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace tutti {

inline constexpr size_t kFrameBytes = 24;

// How many data sockets a connection may have: NCCL's bound for NCCL_SOCKET_NTHREADS ×
// NCCL_NSOCKS_PERTHREAD.
inline constexpr int kMaxDataSockets = 64;

enum class FrameType : uint8_t {
  kData = 1,     // sender → receiver: a chunk follows
  kStriped = 2,  // sender → receiver: a chunk comes over the data sockets (stripe.h)
  kGrant = 3,    // receiver → sender
};

struct Frame {
  FrameType type = FrameType::kData;
  uint8_t data_sockets = 0;
  uint32_t op_tag = 0;
  uint32_t bytes = 0;
  uint64_t count = 0;

  bool operator==(const Frame&) const = default;
};

void EncodeFrame(const Frame& frame, std::span<std::byte, kFrameBytes> out);
// RemoteError, with a sentence, for bytes that EncodeFrame cannot have written.
Result<Frame> DecodeFrame(std::span<const std::byte, kFrameBytes> in);

}  // namespace tutti
