#pragma once

// How far a rank had got when it left a communicator of GPUs: whoever has gone further waits in
// vain. Kernels that wait for one another show nothing of it.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace tutti {

struct Departure {
  int rank = 0;
  // All that it has called is done; else it was cut short.
  bool finished = false;
  uint64_t collectives = 0;  // it has called so many
  // For each rank: so many messages it has received from that one, and sent to it.
  std::vector<uint64_t> messages = {};
};

// Wire form: rank (4 bytes), finished (1), 3 zeroes, collectives (8), messages (8 each, 2 for each
// rank).
void AppendDeparture(const Departure& departure, Bytes& bytes);
// Nothing for what is none, of a communicator of so many ranks.
std::optional<Departure> ReadDeparture(std::span<const std::byte> bytes, int num_ranks);

}  // namespace tutti
