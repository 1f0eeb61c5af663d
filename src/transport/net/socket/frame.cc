#include "transport/net/socket/frame.h"

#include <algorithm>

#include "base/little_endian.h"

namespace tutti {
namespace {

constexpr uint16_t kMagic = 0x7554;

}  // namespace

void EncodeFrame(const Frame& frame, std::span<std::byte, kFrameBytes> out) {
  PutLittleEndian(kMagic, &out[0]);
  PutLittleEndian(static_cast<uint8_t>(frame.type), &out[2]);
  PutLittleEndian(frame.number, &out[3]);
  PutLittleEndian(frame.op_tag, &out[4]);
  PutLittleEndian(frame.bytes, &out[8]);
  PutLittleEndian(frame.tag, &out[12]);
  PutLittleEndian(frame.count, &out[16]);
}

// Every unused field of a frame's type must be 0. A stream that got out of step is therefore
// noticed at the next frame.
Result<Frame> DecodeFrame(std::span<const std::byte, kFrameBytes> in) {
  const auto magic = GetLittleEndian<uint16_t>(&in[0]);
  const auto type = GetLittleEndian<uint8_t>(&in[2]);
  if (magic != kMagic) {
    return RemoteError("a frame begins with {:#06x} instead of {:#06x}", magic, kMagic);
  }
  if (type < 1 || type > 6) return RemoteError("a frame has the unknown type {}", type);
  const Frame frame = {static_cast<FrameType>(type),       GetLittleEndian<uint8_t>(&in[3]),
                       GetLittleEndian<uint32_t>(&in[4]),  GetLittleEndian<uint32_t>(&in[8]),
                       GetLittleEndian<uint64_t>(&in[16]), GetLittleEndian<uint32_t>(&in[12])};
  if (frame.bytes > kMaxNetMessageBytes) {
    return RemoteError("a frame announces {} bytes, more than a chunk may have", frame.bytes);
  }
  const bool grants = frame.type != FrameType::kData && frame.type != FrameType::kStriped;
  const uint64_t most_missing = frame.type == FrameType::kGrant ? 2 * kNetWindow : 0;
  if (grants && (frame.op_tag != 0 || frame.bytes > most_missing || frame.tag != 0)) {
    return RemoteError("a frame that grants buffers announces data as well");
  }
  const uint8_t most = frame.type == FrameType::kStriped ? kMaxDataSockets
                       : frame.type == FrameType::kGroup ? kMaxNetGroup
                                                         : 0;
  if (frame.number > most || (most > 0) != (frame.number > 0)) {
    return RemoteError("a frame of type {} has the number {}", type, frame.number);
  }
  return frame;
}

void EncodeGroupTags(const GroupTags& tags, std::span<std::byte, kGroupTagsBytes> out) {
  for (size_t i = 0; i < tags.size(); ++i) PutLittleEndian(tags[i], &out[4 * i]);
}

// A tag that appeared twice would match two buffers, hence all tags must differ.
Result<GroupTags> DecodeGroupTags(std::span<const std::byte, kGroupTagsBytes> in, uint8_t number) {
  GroupTags tags;
  for (size_t i = 0; i < tags.size(); ++i) {
    tags[i] = GetLittleEndian<uint32_t>(&in[4 * i]);
    const auto before = tags.begin() + static_cast<ptrdiff_t>(i);
    if ((tags[i] != 0) != (i < number) ||
        (tags[i] != 0 && std::find(tags.begin(), before, tags[i]) != before)) {
      return RemoteError("a group of {} buffers has {:#x} for the tag of buffer {}", number,
                         tags[i], i);
    }
  }
  return tags;
}

}  // namespace tutti
