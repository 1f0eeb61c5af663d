#include "transport/net/socket/frame.h"

#include <type_traits>

#include "transport/net/net.h"

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
  Put(frame.data_sockets, &out[3]);
  Put(frame.op_tag, &out[4]);
  Put(frame.bytes, &out[8]);
  Put(uint32_t{0}, &out[12]);
  Put(frame.count, &out[16]);
}

Result<Frame> DecodeFrame(std::span<const std::byte, kFrameBytes> in) {
  const auto magic = Get<uint16_t>(&in[0]);
  const auto type = Get<uint8_t>(&in[2]);
  if (magic != kMagic) {
    return RemoteError("a frame begins with {:#06x} instead of {:#06x}", magic, kMagic);
  }
  if (type < 1 || type > 3) return RemoteError("a frame has the unknown type {}", type);
  const Frame frame = {static_cast<FrameType>(type), Get<uint8_t>(&in[3]), Get<uint32_t>(&in[4]),
                       Get<uint32_t>(&in[8]), Get<uint64_t>(&in[16])};
  if (Get<uint32_t>(&in[12]) != 0) return RemoteError("a frame's reserved bytes are not zero");
  if (frame.bytes > kMaxNetMessageBytes) {
    return RemoteError("a frame announces {} bytes, more than a chunk may have", frame.bytes);
  }
  const bool striped = frame.type == FrameType::kStriped;
  if (striped != (frame.data_sockets != 0) || frame.data_sockets > kMaxDataSockets) {
    return RemoteError("a frame names {} data sockets, which its type forbids", frame.data_sockets);
  }
  if (frame.type == FrameType::kGrant && (frame.op_tag != 0 || frame.bytes != 0)) {
    return RemoteError("a frame that grants slots announces data as well");
  }
  return frame;
}

}  // namespace tutti
