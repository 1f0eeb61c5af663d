// libFuzzer entry for the messages of controllers: make fuzz.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "coordinator/round_message.h"

namespace tutti::coordinator {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// Reads a message. A valid message must be written and read again unchanged, and merge with itself
// and with another message without effect on its own parts.
void Target(std::span<const std::byte> data) {
  if (data.empty()) return;
  const int num_ranks = 1 + std::to_integer<int>(data[0]);
  const auto bytes = data.subspan(1);
  Result<RoundMessage> message = RoundMessage::Decode(bytes, num_ranks);
  if (!message.ok()) return;
  const Bytes written = message->Encode();
  Result<RoundMessage> again = RoundMessage::Decode(written, num_ranks);
  Require(again.ok());
  Require(again->Encode() == written);
  again->Merge(*message);
  Require(RoundMessage::Decode(again->Encode(), num_ranks).ok());
  RoundMessage other;
  other.joining.Add(num_ranks - 1);
  other.claims["t"].variants.push_back({Request(), RankSet::Of(0)});
  other.Merge(*message);
  Require(RoundMessage::Decode(other.Encode(), num_ranks).ok());
  for (const auto& [name, claim] : other.claims) Require(!claim.ranks().empty());
  static_cast<void>(other.joining.Complement(num_ranks).Describe());
}

}  // namespace
}  // namespace tutti::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tutti::coordinator::Target(std::as_bytes(std::span(data, size)));
  return 0;
}
