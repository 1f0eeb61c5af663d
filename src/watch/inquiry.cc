#include "watch/inquiry.h"

#include <cstring>

namespace tutti {
namespace {

struct InquiryWire {
  uint8_t shown;
  uint8_t collective;
  uint8_t type;
  uint8_t op;
  uint8_t has_op;
  uint8_t has_pair;
  uint8_t zero[2];
  int32_t root;
  uint32_t parts;
  uint64_t sequence;
  uint64_t count;
  uint64_t pair_sends;
  uint64_t pair_receives;
  uint32_t registered;
  uint32_t advised;
};
static_assert(sizeof(InquiryWire) == 56);

}  // namespace

void AppendInquiry(const Inquiry& inquiry, Bytes& bytes) {
  const OpSignature& signature = inquiry.signature;
  const PairCounts pair = inquiry.pair.value_or(PairCounts{});
  const InquiryWire wire = {static_cast<uint8_t>(inquiry.shown),
                            static_cast<uint8_t>(signature.collective),
                            static_cast<uint8_t>(signature.type),
                            signature.op,
                            signature.has_op,
                            inquiry.pair.has_value(),
                            {},
                            signature.root,
                            signature.parts,
                            signature.sequence,
                            signature.count,
                            pair.sends,
                            pair.receives,
                            signature.registered,
                            signature.advised};
  const size_t at = bytes.size();
  bytes.resize(at + sizeof(wire));
  std::memcpy(bytes.data() + at, &wire, sizeof(wire));
}

// A peer may be defective, so every field that becomes an enum is checked first.
std::optional<Inquiry> ReadInquiry(std::span<const std::byte> bytes) {
  InquiryWire wire;
  if (bytes.size() != sizeof(wire)) return {};
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.type >= kNumDataTypes || wire.collective >= kNumCollectives ||
      wire.shown > static_cast<uint8_t>(Inquiry::Shown::kForeignReceive))
    return {};
  Inquiry inquiry;
  inquiry.shown = static_cast<Inquiry::Shown>(wire.shown);
  inquiry.signature = {wire.sequence,
                       wire.count,
                       wire.root,
                       wire.parts,
                       static_cast<Collective>(wire.collective),
                       static_cast<DataType>(wire.type),
                       wire.op,
                       wire.has_op != 0,
                       wire.registered,
                       wire.advised};
  if (wire.has_pair != 0) inquiry.pair = PairCounts{wire.pair_sends, wire.pair_receives};
  return inquiry;
}

}  // namespace tutti
