#include "base/copy.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace tutti {
namespace {

using CopyFn = void (*)(void* dst, const void* src, size_t bytes);

// Copies between the given offsets and looks at every byte of the destination, including the bytes
// around the copy.
void CheckCopy(CopyFn copy, size_t bytes, size_t from_shift, size_t to_shift) {
  SCOPED_TRACE(testing::Message() << bytes << " bytes from +" << from_shift << " to +" << to_shift);
  std::vector<uint8_t> from(bytes + 192), to(bytes + 192, 0xee);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint8_t>(i * 131 + (i >> 8));
  std::vector<uint8_t> want = to;
  for (size_t i = 0; i < bytes; ++i) want[64 + to_shift + i] = from[64 + from_shift + i];
  copy(to.data() + 64 + to_shift, from.data() + 64 + from_shift, bytes);
  ASSERT_TRUE(to == want);
}

TEST(CopyTest, EverySmallSizeAndPlacement) {
  for (CopyFn copy : {CopyBytes, CopyBytesPastCache}) {
    for (size_t bytes = 0; bytes <= 400; ++bytes) {
      for (size_t shift = 0; shift < 64; shift += 7) {
        CheckCopy(copy, bytes, shift, (shift * 5) % 64);
      }
    }
  }
}

TEST(CopyTest, SizesAroundTheThresholds) {
  for (CopyFn copy : {CopyBytes, CopyBytesPastCache}) {
    for (size_t bytes : {size_t{4096}, size_t{65537}, kPastCacheBytes - 1, kPastCacheBytes,
                         kPastCacheBytes + 77}) {
      CheckCopy(copy, bytes, 0, 0);
      CheckCopy(copy, bytes, 3, 16);
    }
  }
}

TEST(CopyTest, OntoItselfChangesNothing) {
  for (CopyFn copy : {CopyBytes, CopyBytesPastCache}) {
    std::vector<uint8_t> data(1000, 7);
    copy(data.data(), data.data(), data.size());
    EXPECT_EQ(data, std::vector<uint8_t>(1000, 7));
    copy(nullptr, nullptr, 0);
  }
}

}  // namespace
}  // namespace tutti
