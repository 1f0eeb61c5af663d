#include "transport/net/socket/frame.h"

#include <algorithm>
#include <type_traits>

namespace tutti {
namespace {

constexpr uint16_t kMagic = 0x7554;

template <typename T>
void Put(T value, std::byte* out) {
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

template <typename T>
T Get(const std::byte* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (std::to_integer<T>(in[i]) << (8 * i)));
  }
  return value;
}

}  // namespace

void EncodeFrame(const Frame& frame, std::span<std::byte, kFrameBytes> out) {
  Put(kMagic, &out[0]);
  Put(static_cast<uint8_t>(frame.type), &out[2]);
  Put(frame.number, &out[3]);
  Put(frame.op_tag, &out[4]);
  Put(frame.bytes, &out[8]);
  Put(frame.tag, &out[12]);
  Put(frame.count, &out[16]);
}

Result<Frame> DecodeFrame(std::span<const std::byte, kFrameBytes> in) {
  const auto magic = Get<uint16_t>(&in[0]);
  const auto type = Get<uint8_t>(&in[2]);
  if (magic != kMagic) {
    return RemoteError("a frame begins with {:#06x} instead of {:#06x}", magic, kMagic);
  }
  if (type < 1 || type > 4) return RemoteError("a frame has the unknown type {}", type);
  const Frame frame = {static_cast<FrameType>(type), Get<uint8_t>(&in[3]),
                       Get<uint32_t>(&in[4]),        Get<uint32_t>(&in[8]),
                       Get<uint64_t>(&in[16]),       Get<uint32_t>(&in[12])};
  if (frame.bytes > kMaxNetMessageBytes) {
    return RemoteError("a frame announces {} bytes, more than a chunk may have", frame.bytes);
  }
  const bool grants = frame.type == FrameType::kGrant || frame.type == FrameType::kGroup;
  if (grants && (frame.op_tag != 0 || frame.bytes != 0 || frame.tag != 0)) {
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
  for (size_t i = 0; i < tags.size(); ++i) Put(tags[i], &out[4 * i]);
}

Result<GroupTags> DecodeGroupTags(std::span<const std::byte, kGroupTagsBytes> in, uint8_t number) {
  GroupTags tags;
  for (size_t i = 0; i < tags.size(); ++i) {
    tags[i] = Get<uint32_t>(&in[4 * i]);
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
