#pragma once

// Decides which parts of the memory that a host's ranks share should lie near which rank: its
// stage, which it writes first and all read, and the FIFOs that others fill for it to read. This is
// a pure function; sys/numa.h acts on its result.

#include <cstddef>
#include <vector>

#include "transport/shm/arena.h"

namespace tutti {

struct MemoryRange {
  size_t offset = 0;
  size_t bytes = 0;
};

// Returns the ranges of the rank at `place` among `layout.num_ranks`. All of them begin and end at
// pages, and those of different ranks do not overlap.
std::vector<MemoryRange> MemoryNear(const ArenaLayout& layout, int place);

}  // namespace tutti
