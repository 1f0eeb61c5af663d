#include "watch/leave_notice.h"

namespace tutti {

void AppendLeaveNotice(const LeaveNotice& notice, Bytes& bytes) {
  WireWriter writer;
  writer.U32(static_cast<uint32_t>(notice.rank));
  writer.U32(notice.finished ? 1 : 0);
  writer.U64(notice.collectives);
  for (const uint64_t number : notice.messages) writer.U64(number);
  const Bytes wire = std::move(writer).Take();
  bytes.insert(bytes.end(), wire.begin(), wire.end());
}

// The size of the notice follows from the number of ranks alone.
std::optional<LeaveNotice> ReadLeaveNotice(std::span<const std::byte> bytes, int num_ranks) {
  WireReader reader(bytes);
  LeaveNotice notice = {.rank = static_cast<int>(reader.U32()),
                        .finished = (reader.U32() & 0xff) != 0,
                        .collectives = reader.U64()};
  notice.messages.resize(2 * static_cast<size_t>(num_ranks));
  for (uint64_t& number : notice.messages) number = reader.U64();
  if (reader.failed() || !reader.AtEnd() || notice.rank < 0 || notice.rank >= num_ranks) return {};
  return notice;
}

}  // namespace tutti
