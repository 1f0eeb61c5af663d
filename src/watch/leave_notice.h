#pragma once

// Leave notices: a rank that ends its communicator tells the others how far it has got. A rank that
// has gone further waits in vain, which kernels that wait for one another do not show.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace tutti {

struct LeaveNotice {
  int rank = 0;  // the one that leaves
  // Everything that the rank had begun is done. Otherwise it was cut short by an abort.
  bool finished = false;
  uint64_t collectives = 0;  // the number of the last one that the rank has begun
  // Says for each rank how many messages the leaving one has received from it and sent to it.
  std::vector<uint64_t> messages = {};
};

// Appends the wire form: rank (4 bytes), finished (1), 3 zeroes, collectives (8), messages (8 each,
// 2 for each rank), little-endian.
void AppendLeaveNotice(const LeaveNotice& notice, Bytes& bytes);
// Returns nothing where the bytes are no leave notice of a communicator of `num_ranks`.
std::optional<LeaveNotice> ReadLeaveNotice(std::span<const std::byte> bytes, int num_ranks);

}  // namespace tutti
