#include "launch/meeting_wire.h"

#include <algorithm>

#include "launch/handshake.h"
#include "launch/hex.h"

namespace tutti::launch {
namespace {

constexpr uint8_t kAnswer = 0;
constexpr uint8_t kFailure = 1;
constexpr size_t kMaxMachineBytes = kMaxNoteBytes - 8;
// A host with more addresses has far more than ranks can try.
constexpr size_t kMaxAddresses = 64;
constexpr size_t kMaxAddressBytes = 255;
constexpr size_t kMaxSentenceBytes = 4096;

std::string TakeText(WireWriter writer) { return AsText(std::move(writer).Take()); }

// Returns the same short name for equal machines, and different names for different machines.
std::string Shortened(std::string_view machine) {
  if (machine.size() <= kMaxMachineBytes) return std::string(machine);
  const std::string hash = ToHex(KeyFromText(machine));
  return std::string(machine.substr(0, kMaxMachineBytes - hash.size() - 1)) + "#" + hash;
}

}  // namespace

std::string EncodeResidence(const Residence& residence) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(residence.local_rank + 1));
  writer.U32(static_cast<uint32_t>(residence.local_size + 1));
  writer.Raw(AsBytes(Shortened(residence.machine)));
  return TakeText(std::move(writer));
}

Result<Residence> ParseResidence(std::string_view note) {
  WireReader reader(AsBytes(note));
  const uint32_t local_rank = reader.U32();
  const uint32_t local_size = reader.U32();
  const auto machine = reader.Raw(reader.remaining());
  if (reader.failed() || local_rank > kMaxRanks || local_size > kMaxRanks + 1) {
    return RemoteError("what a rank tells of itself makes no sense");
  }
  return Residence{AsText(machine), static_cast<int>(local_rank) - 1,
                   static_cast<int>(local_size) - 1};
}

std::string EncodeAnswer(const MeetingAnswer& answer) {
  WireWriter writer;
  writer.Reserve(16 + answer.value.size() + 8 * answer.places.size());
  writer.U8(kAnswer);
  writer.U32(static_cast<uint32_t>(answer.value.size()));
  writer.Raw(AsBytes(answer.value));
  writer.U32(static_cast<uint32_t>(answer.places.size()));
  for (const Place& place : answer.places) {
    writer.U32(static_cast<uint32_t>(place.machine));
    writer.U32(static_cast<uint32_t>(place.local_rank));
  }
  return TakeText(std::move(writer));
}

std::string EncodeFailure(std::string_view sentence) {
  WireWriter writer;
  writer.U8(kFailure);
  writer.Sentence(sentence, kMaxSentenceBytes);
  return TakeText(std::move(writer));
}

Result<MeetingAnswer> ParseAnswer(std::string_view bytes, int num_ranks) {
  WireReader reader(AsBytes(bytes));
  const uint8_t kind = reader.U8();
  if (kind == kFailure) {
    const std::string sentence = reader.Sentence();
    if (!reader.failed() && reader.AtEnd()) return RemoteError("rank 0 says: {}", sentence);
  }
  const Status nonsense = RemoteError("the answer of rank 0 makes no sense");
  MeetingAnswer answer;
  answer.value = AsText(reader.Raw(reader.U32()));
  const uint32_t count = reader.U32();
  if (kind != kAnswer || reader.failed() || answer.value.size() > kMaxValueBytes ||
      count != static_cast<uint32_t>(num_ranks) || reader.remaining() != 8 * size_t{count}) {
    return nonsense;
  }
  answer.places.resize(count);
  for (Place& place : answer.places) {
    const uint32_t machine = reader.U32();
    const uint32_t local_rank = reader.U32();
    if (machine >= count || local_rank >= count) return nonsense;
    place.machine = static_cast<int>(machine);
    place.local_rank = static_cast<int>(local_rank);
  }
  TUTTI_TRY(CompletePlaces(&answer.places));
  return answer;
}

std::string EncodeInvitation(const Invitation& invitation) {
  WireWriter writer;
  writer.Raw(std::as_bytes(std::span(invitation.key)));
  writer.U16(invitation.port);
  const size_t count = std::min(invitation.addresses.size(), kMaxAddresses);
  for (size_t i = 0; i < count; ++i) writer.Text(invitation.addresses[i], kMaxAddressBytes);
  return TakeText(std::move(writer));
}

Result<Invitation> ParseInvitation(std::string_view bytes) {
  WireReader reader(AsBytes(bytes));
  Invitation invitation;
  const auto key = reader.Raw(invitation.key.size());
  invitation.port = reader.U16();
  while (!reader.failed() && !reader.AtEnd() && invitation.addresses.size() <= kMaxAddresses) {
    invitation.addresses.push_back(reader.Text());
  }
  if (reader.failed() || !reader.AtEnd() || invitation.port == 0 || invitation.addresses.empty() ||
      invitation.addresses.size() > kMaxAddresses) {
    return RemoteError("the invitation of rank 0 makes no sense");
  }
  std::memcpy(invitation.key.data(), key.data(), key.size());
  return invitation;
}

}  // namespace tutti::launch
