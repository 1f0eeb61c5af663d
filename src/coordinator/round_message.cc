#include "coordinator/round_message.h"

#include <algorithm>

namespace tutti::coordinator {
namespace {

constexpr size_t kMaxTextBytes = 65536;

void WriteClaim(WireWriter& writer, const Claim& claim) {
  writer.U64(claim.order);
  writer.U32(static_cast<uint32_t>(claim.variants.size()));
  for (const Variant& variant : claim.variants) {
    WriteRequest(writer, variant.request);
    variant.ranks.Write(writer);
  }
}

// Each variant belongs to at least one rank, which bounds the number of variants.
bool ReadClaim(WireReader& reader, int num_ranks, Claim& claim) {
  claim.order = reader.U64();
  const uint32_t count = reader.U32();
  if (count == 0 || count > static_cast<uint32_t>(num_ranks)) return false;
  for (uint32_t i = 0; i < count; ++i) {
    Variant& variant = claim.variants.emplace_back();
    if (!ReadRequest(reader, variant.request)) return false;
    if (!variant.ranks.Read(reader, num_ranks) || variant.ranks.empty()) return false;
  }
  return true;
}

// Texts are cut off at a length that the reader accepts.
void WriteTexts(WireWriter& writer, const std::map<int, std::string>& texts) {
  writer.U32(static_cast<uint32_t>(texts.size()));
  for (const auto& [rank, text] : texts) {
    writer.U32(static_cast<uint32_t>(rank));
    WriteText(writer, std::string_view(text).substr(0, kMaxTextBytes));
  }
}

bool ReadTexts(WireReader& reader, int num_ranks, std::map<int, std::string>& texts) {
  const uint32_t count = reader.U32();
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t rank = reader.U32();
    if (rank >= static_cast<uint32_t>(num_ranks)) return false;
    if (!ReadSentence(reader, kMaxTextBytes, texts[static_cast<int>(rank)])) return false;
  }
  return !reader.failed();
}

template <class Value, class Write>
void WriteByName(WireWriter& writer, const std::map<std::string, Value>& map, Write write) {
  writer.U32(static_cast<uint32_t>(map.size()));
  for (const auto& [name, value] : map) {
    WriteText(writer, name);
    write(value);
  }
}

template <class Value, class Read>
bool ReadByName(WireReader& reader, std::map<std::string, Value>& map, Read read) {
  const uint32_t count = reader.U32();
  for (uint32_t i = 0; i < count; ++i) {
    std::string name;
    Value value;
    if (!ReadName(reader, name) || !read(value)) return false;
    map.insert_or_assign(std::move(name), std::move(value));
  }
  return !reader.failed();
}

bool ReadSetWaits(WireReader& reader, int num_ranks, std::optional<SetWaits>& set_waits) {
  const uint8_t present = reader.U8();
  if (present > 1) return false;
  return present == 0 || set_waits.emplace().Read(reader, num_ranks);
}

void WriteTuning(WireWriter& writer, const std::optional<Tuning>& tuning) {
  writer.U8(tuning ? 1 : 0);
  if (!tuning) return;
  writer.U64(static_cast<uint64_t>(tuning->fusion_threshold));
  writer.U64(static_cast<uint64_t>(tuning->window_ns));
  writer.U8(tuning->hierarchical_allreduce ? 1 : 0);
  writer.U8(tuning->hierarchical_allgather ? 1 : 0);
  writer.U8(tuning->cache ? 1 : 0);
}

bool ReadTuning(WireReader& reader, std::optional<Tuning>& tuning) {
  const uint8_t present = reader.U8();
  if (present > 1) return false;
  if (present == 0) return true;
  tuning.emplace();
  tuning->fusion_threshold = static_cast<int64_t>(reader.U64());
  tuning->window_ns = static_cast<int64_t>(reader.U64());
  tuning->hierarchical_allreduce = reader.U8() != 0;
  tuning->hierarchical_allgather = reader.U8() != 0;
  tuning->cache = reader.U8() != 0;
  return tuning->sane();
}

}  // namespace

RankSet Claim::ranks() const {
  RankSet all;
  for (const Variant& variant : variants) all.Union(variant.ranks);
  return all;
}

// Merging is commutative, associative and idempotent, as MergeFromAll demands: the order of the
// variants and `order` follow from the lowest ranks.
void Claim::Merge(const Claim& other) {
  if (other.lowest() < lowest()) order = other.order;
  for (const Variant& theirs : other.variants) {
    const auto mine = std::find_if(variants.begin(), variants.end(),
                                   [&](const Variant& v) { return v.request == theirs.request; });
    if (mine == variants.end()) {
      variants.push_back(theirs);
    } else {
      mine->ranks.Union(theirs.ranks);
    }
  }
  std::sort(variants.begin(), variants.end(),
            [](const Variant& a, const Variant& b) { return a.ranks.lowest() < b.ranks.lowest(); });
}

// Merges field by field in a way that repeats do not change, because a message may come round
// twice.
void RoundMessage::Merge(const RoundMessage& other) {
  for (const auto& [name, claim] : other.claims) {
    const auto [found, added] = claims.emplace(name, claim);
    if (!added) found->second.Merge(claim);
  }
  joining.Union(other.joining);
  leaving.insert(other.leaving.begin(), other.leaving.end());
  for (const auto& [name, entry] : other.waiting) {
    waiting[name].have.Union(entry.have);
    waiting[name].late.Union(entry.late);
  }
  activities.insert(other.activities.begin(), other.activities.end());
  for (const auto& [name, theirs] : other.pending_failures) {
    const auto [found, added] = pending_failures.emplace(name, theirs);
    // Failures of the same check are the same everywhere.
    if (!added && found->second.check < theirs.check) found->second = theirs;
  }
  if (!tuning) tuning = other.tuning;
  if (!other.set_waits) return;
  if (!set_waits) set_waits.emplace();
  set_waits->Merge(*other.set_waits);
}

Bytes RoundMessage::Encode() const {
  WireWriter writer;
  WriteByName(writer, claims, [&](const Claim& claim) { WriteClaim(writer, claim); });
  joining.Write(writer);
  WriteTexts(writer, leaving);
  WriteByName(writer, waiting, [&](const Waiting& entry) {
    entry.have.Write(writer);
    entry.late.Write(writer);
  });
  WriteTexts(writer, activities);
  WriteByName(writer, pending_failures, [&](const PendingFailure& entry) {
    writer.U64(entry.check);
    entry.ranks.Write(writer);
    WriteText(writer, std::string_view(entry.sentence).substr(0, kMaxTextBytes));
  });
  WriteTuning(writer, tuning);
  writer.U8(set_waits ? 1 : 0);
  if (set_waits) set_waits->Write(writer);
  return std::move(writer).Take();
}

Result<RoundMessage> RoundMessage::Decode(std::span<const std::byte> bytes, int num_ranks) {
  WireReader reader(bytes);
  RoundMessage message;
  const auto read_claim = [&](Claim& claim) { return ReadClaim(reader, num_ranks, claim); };
  const auto read_waiting = [&](Waiting& entry) {
    return entry.have.Read(reader, num_ranks) && entry.late.Read(reader, num_ranks);
  };
  const auto read_failure = [&](PendingFailure& entry) {
    entry.check = reader.U64();
    return entry.ranks.Read(reader, num_ranks) &&
           ReadSentence(reader, kMaxTextBytes, entry.sentence);
  };
  if (!ReadByName(reader, message.claims, read_claim) || !message.joining.Read(reader, num_ranks) ||
      !ReadTexts(reader, num_ranks, message.leaving) ||
      !ReadByName(reader, message.waiting, read_waiting) ||
      !ReadTexts(reader, num_ranks, message.activities) ||
      !ReadByName(reader, message.pending_failures, read_failure) ||
      !ReadTuning(reader, message.tuning) || !ReadSetWaits(reader, num_ranks, message.set_waits) ||
      reader.failed() || !reader.AtEnd()) {
    return RemoteError("a rank sent {} bytes that are no message of a coordinator", bytes.size());
  }
  return message;
}

}  // namespace tutti::coordinator
