#include <gtest/gtest.h>

#include <cmath>

#include "base/reduce.h"
#include "testing/narrow_oracle.h"

namespace tutti {
namespace {

TEST(ScalarBitsTest, RoundsToNearestAndStopsAtTheEnds) {
  EXPECT_EQ(ScalarBits(DataType::kInt8, -1), 0xffu);
  EXPECT_EQ(ScalarBits(DataType::kInt8, 1e9), 0x7fu);
  EXPECT_EQ(ScalarBits(DataType::kUint8, -3), 0u);
  EXPECT_EQ(ScalarBits(DataType::kInt32, 2.6), 3u);
  EXPECT_EQ(ScalarBits(DataType::kUint64, 1e30), ~uint64_t{0});
  EXPECT_EQ(ScalarBits(DataType::kInt64, -1e30), uint64_t{1} << 63);
  EXPECT_EQ(ScalarBits(DataType::kInt64, std::nan("")), 0u);
  EXPECT_EQ(ScalarBits(DataType::kFloat32, 0.5), 0x3f000000u);
  EXPECT_EQ(ScalarBits(DataType::kFloat64, 0.5), 0x3fe0000000000000u);
  EXPECT_EQ(ScalarBits(DataType::kFloat16, 0.5), 0x3800u);
  EXPECT_EQ(ScalarBits(DataType::kBfloat16, 0.5), 0x3f00u);
  EXPECT_EQ(ScalarBits(DataType::kFloat8e4m3, 0.5), 0x30u);
  EXPECT_EQ(ScalarBits(DataType::kFloat8e5m2, 0.5), 0x38u);
  EXPECT_EQ(ScalarBits(DataType::kFloat8e4m3, 1e9), 0x7eu);
  EXPECT_EQ(ScalarBits(DataType::kFloat8e5m2, -1e9), 0xfbu);
}

// The conversion from double against the search, on every boundary between two neighbours and just
// beside it.
TEST(ScalarBitsTest, NarrowTypesRoundOnceOnEveryBoundary) {
  for (DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    const NarrowFormat format = *Narrow(type);
    for (uint64_t bits = 0;; ++bits) {
      const double low = DecodeNarrow(format, bits);
      const double high = DecodeNarrow(format, bits + 1);
      if (!std::isfinite(high)) break;
      const double middle = low + (high - low) / 2;
      for (double value :
           {low, std::nextafter(middle, low), middle, std::nextafter(middle, high)}) {
        ASSERT_EQ(ScalarBits(type, value), EncoderOf(type).Encode(value))
            << Name(type) << " " << value;
        ASSERT_EQ(ScalarBits(type, -value), EncoderOf(type).Encode(-value))
            << Name(type) << " " << -value;
      }
    }
    for (double value :
         {1e5, 464.0, 465.0, 1e39, 1e300, 1e-300, 5e-324, 65519.0, 65520.0, 61439.0, 61440.0}) {
      EXPECT_EQ(ScalarBits(type, value), EncoderOf(type).Encode(value))
          << Name(type) << " " << value;
    }
  }
}

}  // namespace
}  // namespace tutti
