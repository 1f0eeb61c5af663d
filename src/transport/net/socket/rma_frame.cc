#include "transport/net/socket/rma_frame.h"

#include "base/little_endian.h"
#include "transport/net/net.h"

namespace tutti {
namespace {

constexpr uint16_t kMagic = 0x7553;

// Returns whether the fields that the frame's type does not use are 0.
bool UnusedAreZero(const RmaFrame& frame) {
  const bool is_atomic = frame.type == RmaFrameType::kAtomic;
  const bool moves = frame.type == RmaFrameType::kPut || frame.type == RmaFrameType::kGet;
  if (!moves && !is_atomic && (frame.key != 0 || frame.offset != 0)) return false;
  if (!moves && frame.type != RmaFrameType::kGot && frame.bytes != 0) return false;
  const bool counts_only = frame.type == RmaFrameType::kHas || frame.type == RmaFrameType::kResume;
  if (counts_only && frame.number != 0) return false;
  if (frame.type == RmaFrameType::kPut && frame.detail == 1) return true;
  const bool swaps = is_atomic && frame.detail == 1;
  const bool has_value = is_atomic || frame.type == RmaFrameType::kFetched;
  return frame.signal_key == 0 && (swaps || frame.signal_offset == 0) &&
         (has_value || frame.signal_value == 0);
}

// A refusal's reason is shown to the user, hence an unknown reason counts as a damaged frame.
bool DetailIsKnown(const RmaFrame& frame) {
  switch (frame.type) {
    case RmaFrameType::kPut:
    case RmaFrameType::kAtomic:
      return frame.detail <= 1;
    case RmaFrameType::kRefused:
      return frame.detail >= 1 && frame.detail <= static_cast<uint8_t>(RmaRefusal::kTooMany);
    default:
      return frame.detail == 0;
  }
}

}  // namespace

std::string_view Describe(RmaRefusal refusal) {
  switch (refusal) {
    case RmaRefusal::kUnknownKey:
      return "it names a key that was not given out, or no longer holds";
    case RmaRefusal::kOutOfRange:
      return "it reaches outside the range of its key";
    case RmaRefusal::kMisaligned:
      return "its word is not aligned to 8 bytes";
    case RmaRefusal::kTooMany:
      return "too many operations wait for their answers";
  }
  return "for an unknown reason";
}

void EncodeRmaFrame(const RmaFrame& frame, std::span<std::byte, kRmaFrameBytes> out) {
  PutLittleEndian(kMagic, &out[0]);
  PutLittleEndian(static_cast<uint8_t>(frame.type), &out[2]);
  PutLittleEndian(frame.detail, &out[3]);
  PutLittleEndian(frame.bytes, &out[4]);
  PutLittleEndian(frame.number, &out[8]);
  PutLittleEndian(frame.key, &out[16]);
  PutLittleEndian(frame.offset, &out[24]);
  PutLittleEndian(frame.signal_key, &out[32]);
  PutLittleEndian(frame.signal_offset, &out[40]);
  PutLittleEndian(frame.signal_value, &out[48]);
  PutLittleEndian(frame.has, &out[56]);
}

// A stream that got out of step is noticed at the next frame: the magic number, the type's range
// and every unused field are checked.
Result<RmaFrame> DecodeRmaFrame(std::span<const std::byte, kRmaFrameBytes> in) {
  const auto magic = GetLittleEndian<uint16_t>(&in[0]);
  const auto type = GetLittleEndian<uint8_t>(&in[2]);
  if (magic != kMagic) {
    return RemoteError("a frame begins with {:#06x} instead of {:#06x}", magic, kMagic);
  }
  if (type < 1 || type > static_cast<uint8_t>(RmaFrameType::kFetched))
    return RemoteError("a frame has the unknown type {}", type);
  RmaFrame frame;
  frame.type = static_cast<RmaFrameType>(type);
  frame.detail = GetLittleEndian<uint8_t>(&in[3]);
  frame.bytes = GetLittleEndian<uint32_t>(&in[4]);
  frame.number = GetLittleEndian<uint64_t>(&in[8]);
  frame.key = GetLittleEndian<uint64_t>(&in[16]);
  frame.offset = GetLittleEndian<uint64_t>(&in[24]);
  frame.signal_key = GetLittleEndian<uint64_t>(&in[32]);
  frame.signal_offset = GetLittleEndian<uint64_t>(&in[40]);
  frame.signal_value = GetLittleEndian<uint64_t>(&in[48]);
  frame.has = GetLittleEndian<uint64_t>(&in[56]);
  if (frame.bytes > kMaxNetMessageBytes) {
    return RemoteError("a frame announces {} bytes, more than an operation may have", frame.bytes);
  }
  if (!DetailIsKnown(frame)) {
    return RemoteError("a frame of type {} has the detail {}", type, frame.detail);
  }
  if (!UnusedAreZero(frame)) {
    return RemoteError("a frame of type {} has fields that its type does not use", type);
  }
  return frame;
}

}  // namespace tutti
