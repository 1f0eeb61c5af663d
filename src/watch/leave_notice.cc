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

void AppendDeparture(const Departure& departure, Bytes& bytes) {
  const Wire wire = {
      departure.rank, departure.finished ? uint8_t{1} : uint8_t{0}, {}, departure.collectives};
  const size_t at = bytes.size(), rest = departure.messages.size() * sizeof(uint64_t);
  bytes.resize(at + sizeof(wire) + rest);
  std::memcpy(bytes.data() + at, &wire, sizeof(wire));
  if (rest > 0) std::memcpy(bytes.data() + at + sizeof(wire), departure.messages.data(), rest);
}

std::optional<Departure> ReadDeparture(std::span<const std::byte> bytes, int num_ranks) {
  const size_t messages = 2 * static_cast<size_t>(num_ranks);
  Wire wire;
  if (bytes.size() != sizeof(wire) + messages * sizeof(uint64_t)) return {};
  std::memcpy(&wire, bytes.data(), sizeof(wire));
  if (wire.rank < 0 || wire.rank >= num_ranks) return {};
  Departure departure = {wire.rank, wire.finished != 0, wire.collectives, {}};
  departure.messages.resize(messages);
  std::memcpy(departure.messages.data(), bytes.data() + sizeof(wire), messages * sizeof(uint64_t));
  return departure;
}

}  // namespace tutti
