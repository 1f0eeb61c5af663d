#include "base/float_formats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

// Rounding on every boundary is held against an independent search in reduce_test.cc (ScalarBits).

namespace tutti {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

static_assert(Float16::ToDouble(0x3c00) == 1.0);
static_assert(Float16::ToDouble(0x7bff) == 65504.0);
static_assert(Float16::ToDouble(0x0001) == 0x1p-24);
static_assert(Float16::FromDouble(65519.99) == 0x7bff && Float16::FromDouble(65520.0) == 0x7c00);
static_assert(Float16::FromDouble(0x1p-25) == 0x0000 && Float16::FromDouble(0x1.1p-25) == 0x0001);
static_assert(Bfloat16::ToDouble(0xc000) == -2.0);
static_assert(Bfloat16::ToDouble(0x0001) == 0x1p-133);
static_assert(Bfloat16::FromDouble(1e300) == 0x7f80);
static_assert(Float8e4m3::ToDouble(0x7e) == 448.0 && Float8e4m3::ToDouble(0x01) == 0x1p-9);
static_assert(Float8e4m3::FromDouble(kInf) == 0x7e && Float8e4m3::FromDouble(-1e9) == 0xfe);
static_assert(Float8e5m2::ToDouble(0x7b) == 57344.0 && Float8e5m2::ToDouble(0x01) == 0x1p-16);
static_assert(Float8e5m2::ToDouble(0x7c) == kInf && Float8e5m2::FromDouble(kInf) == 0x7b);

template <typename Number>
void CheckEveryPattern() {
  double before = -1;
  for (unsigned magnitude = 0; magnitude <= Number::kMagnitudeMask; ++magnitude) {
    SCOPED_TRACE(magnitude);
    const auto positive = static_cast<typename Number::Bits>(magnitude);
    const auto negative = static_cast<typename Number::Bits>(magnitude | Number::kSignBit);
    const double value = Number::ToDouble(positive);
    if (magnitude > Number::kLargest) {
      ASSERT_TRUE(std::isnan(value));
      ASSERT_TRUE(std::isnan(Number::ToDouble(negative)));
      ASSERT_EQ(Number::FromDouble(Number::ToDouble(negative)), Number::kNan);
      continue;
    }
    ASSERT_GT(value, before);
    before = value;
    ASSERT_EQ(Number::ToDouble(negative), -value);
    ASSERT_EQ(std::signbit(Number::ToDouble(negative)), true);
    ASSERT_EQ(static_cast<double>(Number::ToFloat(positive)), value);
    if (std::isinf(value)) {
      ASSERT_EQ(Number::FromDouble(value), Number::kOverflow);
      continue;
    }
    ASSERT_EQ(Number::FromDouble(value), positive);
    ASSERT_EQ(Number::FromDouble(-value), negative);
  }
}

TEST(FloatFormatsTest, EveryPatternSurvivesTheWayToDoubleAndBack) {
  CheckEveryPattern<Float16>();
  CheckEveryPattern<Bfloat16>();
  CheckEveryPattern<Float8e4m3>();
  CheckEveryPattern<Float8e5m2>();
}

}  // namespace
}  // namespace tutti
