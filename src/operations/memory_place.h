#pragma once

// Decides near which rank the parts of a host's shared memory should lie. A rank's stage lies near
// the rank, because the rank writes the stage before all ranks read. A FIFO lies near its receiver.
// The function is pure; sys/numa.h acts on its result.

#include <cstddef>
#include <vector>

#include "transport/shm/arena.h"

namespace tutti {

struct MemoryRange {
  size_t offset = 0;
  size_t bytes = 0;
};

// Returns the ranges of the rank at `place` among `layout.num_ranks`. Ranges begin and end at
// pages. The ranges of different ranks do not overlap.
std::vector<MemoryRange> MemoryNear(const ArenaLayout& layout, int place);

}  // namespace tutti
