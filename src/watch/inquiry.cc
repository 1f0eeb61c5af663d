#include "watch/inquiry.h"

namespace tutti {

void AppendInquiry(const Inquiry& inquiry, Bytes& bytes) {
  const OpSignature& signature = inquiry.signature;
  const PairCounts pair = inquiry.pair.value_or(PairCounts{});
  WireWriter writer;
  writer.U8(static_cast<uint8_t>(inquiry.shown));
  writer.U8(static_cast<uint8_t>(signature.collective));
  writer.U8(static_cast<uint8_t>(signature.type));
  writer.U8(signature.op);
  writer.U8(signature.has_op ? 1 : 0);
  writer.U8(inquiry.pair ? 1 : 0);
  writer.U16(0);
  writer.U32(static_cast<uint32_t>(signature.root));
  writer.U32(signature.parts);
  writer.U64(signature.sequence);
  writer.U64(signature.count);
  writer.U64(pair.sends);
  writer.U64(pair.receives);
  writer.U32(signature.registered);
  writer.U32(signature.advised);
  const Bytes wire = std::move(writer).Take();
  bytes.insert(bytes.end(), wire.begin(), wire.end());
}

// A peer may be defective, so every field that becomes an enum is checked first.
std::optional<Inquiry> ReadInquiry(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  const uint8_t shown = reader.U8(), collective = reader.U8(), type = reader.U8();
  if (type >= kNumDataTypes || collective >= kNumCollectives ||
      shown > static_cast<uint8_t>(Inquiry::Shown::kForeignReceive))
    return {};
  Inquiry inquiry = {.shown = static_cast<Inquiry::Shown>(shown), .signature = {}};
  OpSignature& signature = inquiry.signature;
  signature.collective = static_cast<Collective>(collective);
  signature.type = static_cast<DataType>(type);
  signature.op = reader.U8();
  signature.has_op = reader.U8() != 0;
  const bool has_pair = reader.U8() != 0;
  reader.U16();
  signature.root = static_cast<int32_t>(reader.U32());
  signature.parts = reader.U32();
  signature.sequence = reader.U64();
  signature.count = reader.U64();
  const PairCounts pair = {reader.U64(), reader.U64()};
  if (has_pair) inquiry.pair = pair;
  signature.registered = reader.U32();
  signature.advised = reader.U32();
  if (reader.failed() || !reader.AtEnd()) return {};
  return inquiry;
}

}  // namespace tutti
