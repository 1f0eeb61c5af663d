#pragma once

// The frames of one-sided operations over a socket: 64 bytes that ask a question or answer one.
// Both ends of a connection may ask, and each end answers in the order of the questions.
//
// Format (all integers little-endian; fields that a type does not use are 0):
//     0  magic          u16   0x7553
//     2  type           u8    RmaFrameType
//     3  detail         u8    kPut: 1 with a signal, 0 without; kAtomic: 1 compares and swaps, 0
//                             adds; kRefused: RmaRefusal
//     4  bytes          u32   kPut, kGet, kGot: length
//     8  number         u64   of the operation, from 0 over the connection's life; an answer repeats
//                             the number of its question
//    16  key            u64   kPut, kGet, kAtomic: the range; 0 for a put of no bytes
//    24  offset         u64   kPut, kGet, kAtomic: in the range
//    32  signal_key     u64   kPut with a signal: the range that holds the word
//    40  signal_offset  u64   kAtomic that swaps: the comparand of the word
//    48  signal_value   u64   kAtomic: the operand; kFetched: the word's previous value
//    56  has            u64   on a connection that can be resumed: how many operations of the
//                             receiver of this frame its sender has carried out; otherwise 0
// A kPut and a kGot frame are followed by their bytes. kHas and kResume carry only `has`. kResume
// is the first frame in each direction on new sockets and tells the other end where to continue
// (rma_comm.h).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace tutti {

inline constexpr size_t kRmaFrameBytes = 64;

enum class RmaFrameType : uint8_t {
  kPut = 1,
  kGet = 2,
  kFlush = 3,
  kGot = 4,      // answers kGet
  kFlushed = 5,  // answers kFlush: all earlier operations have been carried out
  kRefused = 6,  // the last frame of a connection, which its sender breaks
  kHas = 7,
  kResume = 8,
  kAtomic = 9,
  kFetched = 10,  // answers kAtomic
};

enum class RmaRefusal : uint8_t {
  kUnknownKey = 1,
  kOutOfRange = 2,
  kMisaligned = 3,
  kTooMany = 4,
};
// Returns the fault of the operation: "it reaches outside the range of its key".
std::string_view Describe(RmaRefusal refusal);

struct RmaFrame {
  RmaFrameType type = RmaFrameType::kPut;
  uint8_t detail = 0;
  uint32_t bytes = 0;
  uint64_t number = 0;
  uint64_t key = 0;
  uint64_t offset = 0;
  uint64_t signal_key = 0;
  uint64_t signal_offset = 0;
  uint64_t signal_value = 0;
  uint64_t has = 0;

  bool operator==(const RmaFrame&) const = default;
};

void EncodeRmaFrame(const RmaFrame& frame, std::span<std::byte, kRmaFrameBytes> out);
// Returns RemoteError, with the reason, for bytes that EncodeRmaFrame cannot have written.
Result<RmaFrame> DecodeRmaFrame(std::span<const std::byte, kRmaFrameBytes> in);

}  // namespace tutti
