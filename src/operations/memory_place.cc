#include "operations/memory_place.h"

namespace tutti {

std::vector<MemoryRange> MemoryNear(const ArenaLayout& layout, int place) {
  std::vector<MemoryRange> near = {{layout.StageOffset(place), layout.StageStride()}};
  for (int from = 0; from < static_cast<int>(layout.num_ranks); ++from)
    near.push_back({layout.FifoOffset(from, place), layout.FifoStride()});
  return near;
}

}  // namespace tutti
