// Tests the arithmetic of kernels, compiled for the host.

#include "backend/cuda/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tutti::cuda {
namespace {

template <class T>
class ZeroesTest : public ::testing::Test {};
using Floats = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ZeroesTest, Floats);

TYPED_TEST(ZeroesTest, TheNegativeOneIsSmaller) {
  const TypeParam plus = 0, minus = -plus;
  for (const auto& [a, b] : {std::pair{plus, minus}, std::pair{minus, plus}}) {
    EXPECT_FALSE(std::signbit(Larger(a, b)));
    EXPECT_TRUE(std::signbit(Smaller(a, b)));
  }
  EXPECT_TRUE(std::signbit(Larger(minus, minus)));
  EXPECT_FALSE(std::signbit(Smaller(plus, plus)));
}

TYPED_TEST(ZeroesTest, NaNIsKept) {
  const TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN();
  EXPECT_TRUE(std::isnan(Larger(nan, TypeParam(1))) && std::isnan(Larger(TypeParam(1), nan)));
  EXPECT_TRUE(std::isnan(Smaller(nan, TypeParam(1))) && std::isnan(Smaller(TypeParam(1), nan)));
}

E5m2 Reduced(ReduceKind kind, uint8_t a, uint8_t b) {
  uint32_t words[2][4] = {{a}, {b}}, result[4];
  auto pack = Pack<E5m2, 16>::From(words[0]);
  pack.Combine(kind, Pack<E5m2, 16>::From(words[1]));
  pack.To(result, kind);
  return {static_cast<uint8_t>(result[0])};
}

TEST(E5m2Test, AnInfinityThatIsChosenStaysAndASumSaturates) {
  const uint8_t one = 0x3c, infinity = 0x7c, largest = 0x7b, negative = 0x80;
  EXPECT_EQ(Reduced(ReduceKind::kMax, one, infinity).bits, infinity);
  EXPECT_EQ(Reduced(ReduceKind::kMin, one, infinity | negative).bits, infinity | negative);
  EXPECT_EQ(Reduced(ReduceKind::kMax, one, largest).bits, largest);
  EXPECT_EQ(Reduced(ReduceKind::kSum, one, infinity).bits, largest);
  EXPECT_EQ(Reduced(ReduceKind::kSum, largest, largest).bits, largest);
}

}  // namespace
}  // namespace tutti::cuda
