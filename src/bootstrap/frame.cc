#include "bootstrap/frame.h"

#include <algorithm>
#include <cstring>

#include "base/little_endian.h"

namespace tutti {
namespace {

constexpr uint16_t kMagic = 0x5474;
constexpr size_t kNumberAt = 20;

}  // namespace

Bytes EncodeFrame(const FrameHeader& header, std::span<const std::byte> payload) {
  WireWriter writer;
  writer.Reserve(kFrameHeaderBytes + payload.size());
  writer.U16(kMagic);
  writer.U8(static_cast<uint8_t>(header.type));
  writer.U8(0);
  writer.U32(header.tag);
  writer.U64(header.communicator);
  writer.U32(static_cast<uint32_t>(payload.size()));
  writer.U32(header.number);
  writer.Raw(payload);
  return std::move(writer).Take();
}

void SetFrameNumber(Bytes& frame, uint32_t number) { PutLittleEndian(number, &frame[kNumberAt]); }

Result<FrameHeader> ParseFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes) {
  WireReader reader(bytes);
  if (reader.U16() != kMagic) return RemoteError("a frame does not begin with its magic number");
  const uint8_t type = reader.U8();
  if (type < static_cast<uint8_t>(LinkFrameType::kMessage) ||
      type > static_cast<uint8_t>(LinkFrameType::kHeldUp) || reader.U8() != 0) {
    return RemoteError("a frame is of the unknown type {}", type);
  }
  FrameHeader header;
  header.type = static_cast<LinkFrameType>(type);
  header.tag = reader.U32();
  header.communicator = reader.U64();
  header.size = reader.U32();
  header.number = reader.U32();
  if (header.size > kMaxFrameBytes) {
    return RemoteError("a frame announces {} bytes, more than the {} allowed", header.size,
                       kMaxFrameBytes);
  }
  if (header.number != 0 && !IsNumbered(header.type))
    return RemoteError("a frame of type {} has a number", type);
  return header;
}

// Data may end anywhere, in the middle of a header as well. The reader keeps the rest for the next
// call.
Status FrameReader::Feed(std::span<const std::byte> data, const Sink& sink) {
  for (;;) {
    if (header_got_ < kFrameHeaderBytes) {
      const size_t count = std::min(kFrameHeaderBytes - header_got_, data.size());
      if (count > 0) std::memcpy(header_bytes_.data() + header_got_, data.data(), count);
      header_got_ += count;
      data = data.subspan(count);
      if (header_got_ < kFrameHeaderBytes) return Status::Ok();
      TUTTI_ASSIGN(header_, ParseFrameHeader(header_bytes_));
    }
    const size_t count = std::min(header_.size - payload_.size(), data.size());
    payload_.insert(payload_.end(), data.begin(), data.begin() + static_cast<ptrdiff_t>(count));
    data = data.subspan(count);
    if (payload_.size() < header_.size) return Status::Ok();
    header_got_ = 0;
    TUTTI_TRY(sink(header_, std::exchange(payload_, {})));
  }
}

}  // namespace tutti
