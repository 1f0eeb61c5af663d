#include "perf/numbers.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "library.h"

namespace tutti::tools {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Numbers, KnownElements) {
  struct Known {
    ncclDataType_t type;
    uint64_t bits;
    double value;
  };
  const Known known[] = {
      {ncclFloat16, 0x3c00, 1},
      {ncclFloat16, 0x7bff, 65504},
      {ncclFloat16, 0x0001, 0x1p-24},
      {ncclFloat16, 0xfc00, -kInfinity},
      {ncclBfloat16, 0x3f80, 1},
      {ncclBfloat16, 0xc040, -3},
      {ncclFloat8e4m3, 0x38, 1},
      {ncclFloat8e4m3, 0x7e, 448},
      {ncclFloat8e4m3, 0x01, 0x1p-9},
      {ncclFloat8e5m2, 0x3c, 1},
      {ncclFloat8e5m2, 0x7b, 57344},
      {ncclFloat8e5m2, 0x7c, kInfinity},
      {ncclFloat8e5m2, 0x01, 0x1p-16},
      {ncclFloat32, 0x40490fdb, 0x1.921fb6p+1},
      {ncclFloat64, 0xbff0000000000000, -1},
  };
  for (const Known& entry : known) {
    EXPECT_EQ(DecodeFloat(entry.type, entry.bits), entry.value) << entry.type << " " << entry.bits;
    EXPECT_EQ(EncodeFloat(entry.type, entry.value), entry.bits) << entry.type << " " << entry.value;
  }
}

// Compares with the compiler's own float.
TEST(Numbers, Float32AsTheProcessorHasIt) {
  const double values[] = {0.1,      -0.1,    1e-40, 1e-46, 3.4e38, 3.5e38, 1.00000005960464477539,
                           16777217, -2.5e-45};
  for (const double value : values) {
    const auto expected = std::bit_cast<uint32_t>(static_cast<float>(value));
    EXPECT_EQ(EncodeFloat(ncclFloat32, value), expected) << value;
    EXPECT_EQ(DecodeFloat(ncclFloat32, expected),
              static_cast<double>(std::bit_cast<float>(expected)));
  }
}

TEST(Numbers, EveryShortFloatSurvivesARoundTrip) {
  for (const ncclDataType_t type : {ncclFloat16, ncclBfloat16, ncclFloat8e4m3, ncclFloat8e5m2}) {
    const uint64_t end = uint64_t{1} << (ElementSize(type) * 8);
    for (uint64_t bits = 0; bits < end; ++bits) {
      const double value = DecodeFloat(type, bits);
      if (std::isnan(value)) continue;
      ASSERT_EQ(EncodeFloat(type, value), bits) << type << " " << value;
    }
  }
}

TEST(Numbers, RoundsTiesToEvenAndOverflows) {
  EXPECT_EQ(EncodeFloat(ncclFloat16, 2049), EncodeFloat(ncclFloat16, 2048));
  EXPECT_EQ(EncodeFloat(ncclFloat16, 2051), EncodeFloat(ncclFloat16, 2052));
  EXPECT_EQ(EncodeFloat(ncclFloat16, 65519), 0x7bffu);
  EXPECT_EQ(EncodeFloat(ncclFloat16, 65520), 0x7c00u);
  EXPECT_EQ(EncodeFloat(ncclFloat8e5m2, 1e9), 0x7cu);
  EXPECT_TRUE(std::isnan(DecodeFloat(ncclFloat8e4m3, EncodeFloat(ncclFloat8e4m3, 1e9))));
  EXPECT_TRUE(std::isnan(DecodeFloat(ncclFloat16, EncodeFloat(ncclFloat16, std::nan("")))));
}

TEST(Numbers, Integers) {
  EXPECT_EQ(DecodeInteger(ncclInt8, 0xff), -1);
  EXPECT_EQ(DecodeInteger(ncclUint8, 0x1ff), 255);
  EXPECT_EQ(DecodeInteger(ncclInt32, 0x80000000), std::numeric_limits<int32_t>::min());
  EXPECT_EQ(DecodeInteger(ncclUint32, 0xffffffff), 0xffffffffll);
  EXPECT_EQ(ExactIntegers(ncclInt8), 127);
  EXPECT_EQ(ExactIntegers(ncclUint8), 255);
  EXPECT_EQ(ExactIntegers(ncclFloat8e5m2), 8);
  EXPECT_EQ(ExactIntegers(ncclFloat16), 2048);
}

}  // namespace
}  // namespace tutti::tools
