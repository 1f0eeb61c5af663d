#pragma once

// Leave notices: a rank that ends its communicator tells the others how many operations it has
// begun. A rank that has begun more waits in vain, and its kernels cannot notice the departure by
// themselves.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace tutti {

struct LeaveNotice {
  int rank = 0;  // the leaving rank
  // Everything begun by the rank is done. Otherwise an abort cut the rank short.
  bool finished = false;
  uint64_t collectives = 0;  // the number of the last collective that the rank has begun
  // For each rank: how many messages the leaving rank has received from the other rank and sent to
  // it.
  std::vector<uint64_t> messages = {};
};

// Appends the wire form: rank (4 bytes), finished (1), 3 zeroes, collectives (8), messages (8 each,
// 2 for each rank), little-endian.
void AppendLeaveNotice(const LeaveNotice& notice, Bytes& bytes);
// Returns nothing where the bytes are no leave notice of a communicator of `num_ranks`.
std::optional<LeaveNotice> ReadLeaveNotice(std::span<const std::byte> bytes, int num_ranks);

}  // namespace tutti
