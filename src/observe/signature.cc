#include "observe/signature.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace tutti {

uint32_t OpSignature::Tag() const {
  uint64_t h = sequence * 0x9E3779B97F4A7C15u;
  h ^= count + 0x7F4A7C15u + (h << 6) + (h >> 2);
  h *= 0xBF58476D1CE4E5B9u;
  // The two ends of a message name each other; only the fields they have in common count.
  const int32_t common_root = collective == Collective::kSendRecv ? -1 : root;
  h ^= static_cast<uint64_t>(static_cast<uint32_t>(common_root)) << 32 |
       static_cast<uint64_t>(collective) << 24 | static_cast<uint64_t>(type) << 16 |
       static_cast<uint64_t>(op) << 8 | (has_op ? 1 : 0);
  h *= 0x94D049BB133111EBu;
  return MixTag(static_cast<uint32_t>(h >> 32), parts);
}

uint32_t MixTag(uint32_t tag, uint64_t with) {
  uint64_t h = (tag + with * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  h ^= h >> 29;
  return static_cast<uint32_t>((h * 0x94D049BB133111EBu) >> 32);
}

OpSignature SignatureOf(const MessageTask& message) {
  OpSignature signature;
  signature.collective = Collective::kSendRecv;
  signature.type = message.type;
  signature.count = message.count;
  signature.root = message.peer;
  return signature;
}

OpSignature SignatureOf(const CollectiveTask& task) {
  OpSignature signature;
  signature.collective = task.collective;
  signature.type = task.type;
  signature.count = task.count;
  if (task.parts && !HasCountsByPair(task.collective)) {
    signature.count = task.parts->recvs.Total();
    for (const size_t count : task.parts->recvs.counts)
      signature.parts = MixTag(signature.parts, count + 1);
  }
  // Each rank may cut its buffers at will, but ranks with a single buffer would read the parts
  // otherwise.
  if (task.scattered) signature.parts = 1;
  if (task.has_root()) signature.root = task.root;
  signature.has_op = task.is_reduction();
  if (signature.has_op) signature.op = task.op.number;
  return signature;
}

std::string OpSignature::Describe() const {
  static constexpr std::array<std::string_view, 6> kOps = {"sum", "prod", "max",
                                                           "min", "avg",  "premulsum"};
  std::string text = fmt::format("{}(", Name(collective));
  if (HasCountsByPair(collective))
    text += tutti::Name(type);
  else if (collective != Collective::kBarrier)
    text += fmt::format("count {}, {}", count, tutti::Name(type));
  if (parts != 0) text += fmt::format(" in parts {:08x}", parts);
  if (has_op) text += fmt::format(", {}", kOps[op < kOps.size() ? op : kOps.size() - 1]);
  if (root >= 0)
    text += fmt::format(", {} {}", collective == Collective::kSendRecv ? "peer" : "root", root);
  if (registered != 0) text += fmt::format(", in registered buffers {:08x}", registered);
  if (advised != 0) text += fmt::format(", tuned to {:08x}", advised);
  return text + ")";
}

}  // namespace tutti
