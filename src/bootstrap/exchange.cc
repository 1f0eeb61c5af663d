#include "bootstrap/exchange.h"

namespace tutti {

Bytes WriteParts(std::span<const Bytes> parts) {
  WireWriter writer;
  for (const Bytes& part : parts) {
    writer.U32(static_cast<uint32_t>(part.size()));
    writer.Raw(part);
  }
  return std::move(writer).Take();
}

Status ReadParts(std::span<const std::byte> message, size_t count, std::vector<Bytes>& parts) {
  WireReader reader(message);
  for (size_t i = 0; i < count; ++i) {
    const auto part = reader.Raw(reader.U32());
    if (reader.failed()) break;
    parts.emplace_back(part.begin(), part.end());
  }
  if (reader.failed() || !reader.AtEnd()) {
    return RemoteError("a message of an exchange does not hold the {} parts expected", count);
  }
  return Status::Ok();
}

}  // namespace tutti
