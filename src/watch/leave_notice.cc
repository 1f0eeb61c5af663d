#include "watch/leave_notice.h"

#include <cstring>

namespace tutti {
namespace {

struct Wire {
  int32_t rank;
  uint8_t finished;
  uint8_t zero[3];
  uint64_t collectives;
};
static_assert(sizeof(Wire) == 16);

}  // namespace

void AppendLeaveNotice(const LeaveNotice& notice, Bytes& bytes) {
  const Wire wire = {
      notice.rank, notice.finished ? uint8_t{1} : uint8_t{0}, {}, notice.collectives};
  const size_t at = bytes.size(), rest = notice.messages.size() * sizeof(uint64_t);
  bytes.resize(at + sizeof(wire) + rest);
  std::memcpy(bytes.data() + at, &wire, sizeof(wire));
  if (rest > 0) std::memcpy(bytes.data() + at + sizeof(wire), notice.messages.data(), rest);
}

// The size of the notice follows from the number of ranks alone.
std::optional<LeaveNotice> ReadLeaveNotice(std::span<const std::byte> bytes, int num_ranks) {
  const size_t messages = 2 * static_cast<size_t>(num_ranks);
  Wire wire;
  if (bytes.size() != sizeof(wire) + messages * sizeof(uint64_t)) return {};
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.rank < 0 || wire.rank >= num_ranks) return {};
  LeaveNotice notice = {wire.rank, wire.finished != 0, wire.collectives, {}};
  notice.messages.resize(messages);
  std::memcpy(notice.messages.data(), bytes.data() + sizeof(wire), messages * sizeof(uint64_t));
  return notice;
}

}  // namespace tutti
