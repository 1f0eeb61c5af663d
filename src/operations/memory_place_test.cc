#include "operations/memory_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tutti {
namespace {

constexpr size_t kPage = 4096;

// Four ranks, two on each of two nodes: checks the places of pages when each rank has its part near
// itself.
TEST(MemoryNear, EveryPageOfStagesAndFifosIsNearItsReader) {
  for (const uint64_t stage_bytes : {uint64_t{128} << 10, uint64_t{0}}) {
    ArenaLayout layout;
    layout.num_ranks = 4;
    layout.stage_bytes = stage_bytes;
    layout.fifo_slot_bytes = 64 << 10;
    std::vector<int> owner(layout.TotalBytes() / kPage, -1);
    for (int place = 0; place < 4; ++place) {
      for (const MemoryRange& range : MemoryNear(layout, place)) {
        EXPECT_EQ(range.offset % kPage, 0u);
        EXPECT_EQ(range.bytes % kPage, 0u);
        ASSERT_LE(range.offset + range.bytes, layout.TotalBytes());
        for (size_t page = range.offset / kPage; page < (range.offset + range.bytes) / kPage;
             ++page) {
          EXPECT_EQ(owner[page], -1) << "page " << page << " has two ranks";
          owner[page] = place;
        }
      }
    }
    for (int place = 0; place < 4; ++place) {
      EXPECT_EQ(owner[layout.StageOffset(place) / kPage], place) << "written by " << place;
      for (int from = 0; from < 4; ++from)
        EXPECT_EQ(owner[layout.FifoOffset(from, place) / kPage], place) << "read by " << place;
    }
    // The remaining pages are the header.
    EXPECT_EQ(static_cast<size_t>(std::count(owner.begin(), owner.end(), -1)),
              layout.StageOffset(0) / kPage);
  }
}

}  // namespace
}  // namespace tutti
