#include "observe/recent_collectives.h"

#include <gtest/gtest.h>

#include <thread>

namespace tutti {
namespace {

OpSignature Number(uint64_t sequence) {
  OpSignature signature;
  signature.sequence = sequence;
  signature.count = 3 * sequence;
  signature.root = static_cast<int32_t>(sequence % 1000);
  signature.parts = static_cast<uint32_t>(sequence);
  signature.op = static_cast<uint8_t>(sequence % 6);
  return signature;
}

TEST(RecentCollectives, KeepsTheLastAndForgetsTheRest) {
  RecentCollectives recent;
  EXPECT_EQ(recent.last(), 0u);
  EXPECT_FALSE(recent.Find(0));
  EXPECT_FALSE(recent.Find(1));
  for (uint64_t i = 1; i <= 200; ++i) recent.Add(Number(i));
  EXPECT_EQ(recent.last(), 200u);
  for (uint64_t i = 1; i <= 201; ++i) {
    const auto found = recent.Find(i);
    ASSERT_EQ(found.has_value(), i > 200 - RecentCollectives::kKept && i <= 200) << i;
    if (found) {
      EXPECT_EQ(*found, Number(i));
    }
  }
}

TEST(RecentCollectives, AReaderNeverSeesHalfOfOne) {
  RecentCollectives recent;
  std::atomic<bool> over = false;
  std::thread reader([&] {
    while (!over) {
      // The place that is about to change, the hardest case.
      const uint64_t sequence =
          recent.last() + 1 - std::min(recent.last(), RecentCollectives::kKept);
      if (const auto found = recent.Find(sequence)) {
        ASSERT_EQ(*found, Number(sequence));
      }
    }
  });
  for (uint64_t i = 1; i <= 1'000'000; ++i) recent.Add(Number(i));
  over = true;
  reader.join();
}

}  // namespace
}  // namespace tutti
