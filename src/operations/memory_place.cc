#include "operations/memory_place.h"

namespace tutti {

// The stage of a rank lies near the rank, and so does every FIFO to the rank.
std::vector<MemoryRange> MemoryNear(const ArenaLayout& layout, int place) {
  std::vector<MemoryRange> near = {{layout.StageOffset(place), layout.StageStride()}};
  for (int from = 0; from < static_cast<int>(layout.num_ranks); ++from)
    near.push_back({layout.FifoOffset(from, place), layout.FifoStride()});
  return near;
}

}  // namespace tutti
