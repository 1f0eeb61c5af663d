#include "testing/oracle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace tutti::oracle {
namespace {

uint64_t Bits(ncclDataType_t type, long double value) {
  uint64_t bits = 0;
  FromReal(type, value, &bits);
  return bits;
}

long double Value(ncclDataType_t type, uint64_t bits) { return ToReal(type, &bits); }

TEST(OracleTest, KnowsNumbersByTheirBits) {
  EXPECT_EQ(Bits(ncclFloat16, 1.0L), 0x3c00u);
  EXPECT_EQ(Bits(ncclFloat16, 65504.0L), 0x7bffu);
  EXPECT_EQ(Bits(ncclFloat16, 65520.0L),
            0x7c00u);  // halfway to the number after the last: infinity
  EXPECT_EQ(Bits(ncclFloat16, 65519.0L), 0x7bffu);
  EXPECT_EQ(Bits(ncclFloat16, std::ldexp(1.0L, -24)), 0x0001u);
  EXPECT_EQ(Bits(ncclFloat16, std::ldexp(1.0L, -25)), 0x0000u);
  EXPECT_EQ(Bits(ncclBfloat16, -1.5L), 0xbfc0u);
  EXPECT_EQ(Bits(ncclBfloat16, 3.140625L), 0x4049u);
  EXPECT_EQ(Bits(ncclFloat8e4m3, 448.0L), 0x7eu);
  EXPECT_EQ(Bits(ncclFloat8e4m3, 1e9L), 0x7eu);
  EXPECT_EQ(Bits(ncclFloat8e4m3, std::ldexp(1.0L, -9)), 0x01u);
  EXPECT_EQ(Bits(ncclFloat8e5m2, 57344.0L), 0x7bu);
  EXPECT_EQ(Bits(ncclFloat8e5m2, std::numeric_limits<long double>::infinity()), 0x7bu);
  EXPECT_TRUE(std::isnan(Value(ncclFloat8e4m3, 0x7f)));
  EXPECT_TRUE(std::isnan(Value(ncclFloat8e4m3, 0xff)));
  EXPECT_EQ(Value(ncclFloat8e4m3, 0x78), 256.0L);
  EXPECT_TRUE(std::isinf(Value(ncclFloat8e5m2, 0x7c)));
  EXPECT_TRUE(std::isnan(Value(ncclFloat8e5m2, 0x7d)));
}

TEST(OracleTest, RoundsTiesToEven) {
  EXPECT_EQ(Bits(ncclFloat8e4m3, 17.0L), Bits(ncclFloat8e4m3, 16.0L));
  EXPECT_EQ(Bits(ncclFloat8e4m3, 19.0L), Bits(ncclFloat8e4m3, 20.0L));
  EXPECT_EQ(Bits(ncclFloat8e5m2, 9.0L), Bits(ncclFloat8e5m2, 8.0L));
  EXPECT_EQ(Bits(ncclFloat16, 2049.0L), Bits(ncclFloat16, 2048.0L));
  EXPECT_EQ(Bits(ncclFloat16, 2051.0L), Bits(ncclFloat16, 2052.0L));
}

// Every element of the small formats comes back from its value.
class RoundTripTest : public ::testing::TestWithParam<ncclDataType_t> {};

TEST_P(RoundTripTest, ElementsComeBack) {
  const ncclDataType_t type = GetParam();
  for (uint64_t bits = 0; bits < uint64_t{1} << (8 * SizeOf(type)); ++bits) {
    const long double value = Value(type, bits);
    if (std::isnan(value)) continue;
    if (type == ncclFloat8e5m2 && std::isinf(value)) continue;  // becomes the largest number
    ASSERT_EQ(Bits(type, value), bits) << Name(type) << " " << bits;
  }
}

INSTANTIATE_TEST_SUITE_P(SmallFormats, RoundTripTest,
                         ::testing::Values(ncclFloat16, ncclBfloat16, ncclFloat8e4m3,
                                           ncclFloat8e5m2),
                         [](const auto& instance) { return std::string(Name(instance.param)); });

TEST(OracleTest, AgreesWithTheCompilersFloats) {
  for (const double value : {0.1, -3.7, 1e-40, 1e30, 1e39, 6.02e23, -0.0}) {
    uint32_t narrow;
    const auto as_float = static_cast<float>(value);
    std::memcpy(&narrow, &as_float, sizeof(narrow));
    EXPECT_EQ(Bits(ncclFloat32, value), narrow) << value;
    uint64_t wide;
    std::memcpy(&wide, &value, sizeof(wide));
    EXPECT_EQ(Bits(ncclFloat64, value), wide) << value;
    EXPECT_EQ(Value(ncclFloat64, wide), static_cast<long double>(value));
  }
}

template <class T>
std::vector<T> Result(const Reduction& reduction, std::vector<std::vector<T>> inputs) {
  std::vector<const void*> arrays;
  for (const auto& input : inputs) arrays.push_back(input.data());
  const Expected expected = Reduce(reduction, arrays, inputs[0].size());
  std::vector<T> result(inputs[0].size());
  std::memcpy(result.data(), expected.elements.data(), expected.elements.size());
  return result;
}

TEST(OracleTest, ReducesIntegersModuloTheirWidth) {
  using ::testing::ElementsAre;
  const std::vector<std::vector<int8_t>> in = {{100, -7, 3}, {100, -8, 4}, {100, 0, 5}};
  EXPECT_THAT(Result<int8_t>({ncclInt8, Op::kSum, false, {}}, in), ElementsAre(44, -15, 12));
  EXPECT_THAT(Result<int8_t>({ncclInt8, Op::kAvg, false, {}}, in), ElementsAre(14, -5, 4));
  EXPECT_THAT(Result<int8_t>({ncclInt8, Op::kProd, false, {}}, in), ElementsAre(64, 0, 60));
  EXPECT_THAT(Result<int8_t>({ncclInt8, Op::kMin, false, {}}, in), ElementsAre(100, -8, 3));
  EXPECT_THAT(Result<int8_t>({ncclInt8, Op::kMax, false, {}}, in), ElementsAre(100, 0, 5));
  EXPECT_THAT(Result<int8_t>({ncclInt8, Op::kPreMulSum, false, {1, 2, 255}}, in),
              ElementsAre(-56, -23, 6));
  EXPECT_THAT(Result<uint8_t>({ncclUint8, Op::kAvg, false, {}}, {{200}, {100}}), ElementsAre(22));
}

TEST(OracleTest, ReducesFloats) {
  using ::testing::ElementsAre;
  EXPECT_THAT(Result<float>({ncclFloat32, Op::kAvg, false, {}}, {{1, 3}, {2, 4}}),
              ElementsAre(1.5f, 3.5f));
  EXPECT_THAT(Result<float>({ncclFloat32, Op::kMax, false, {}}, {{1, -3}, {2, -4}}),
              ElementsAre(2.0f, -3.0f));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto with_nan = Result<float>({ncclFloat32, Op::kMin, false, {}}, {{nan, 1}, {2, nan}});
  EXPECT_TRUE(std::isnan(with_nan[0]) && std::isnan(with_nan[1]));
}

TEST(OracleTest, ChoosesElementsUntouched) {
  using ::testing::ElementsAre;
  constexpr uint8_t kInfinity = 0x7c, kOne = 0x3c;
  EXPECT_THAT(
      Result<uint8_t>({ncclFloat8e5m2, Op::kMax, false, {}}, {{kInfinity, kOne}, {kOne, kOne}}),
      ElementsAre(kInfinity, kOne));
}

TEST(OracleTest, FindsWhatIsWrongAndForgivesRoundingOnlyWhereAllowed) {
  const std::vector<float> a = {1.0f, 0.1f};
  const std::vector<float> b = {2.0f, 0.2f};
  const void* const inputs[] = {a.data(), b.data()};
  const Expected rounded = Reduce({ncclFloat32, Op::kSum, false, {}}, inputs, 2);
  const Expected exact = Reduce({ncclFloat32, Op::kSum, true, {}}, inputs, 2);
  std::vector<float> actual = {3.0f, 0.1f + 0.2f};
  EXPECT_EQ(Compare(ncclFloat32, rounded, actual.data()), "");
  actual[0] = std::nextafter(3.0f, 4.0f);
  EXPECT_EQ(Compare(ncclFloat32, rounded, actual.data()), "");
  EXPECT_THAT(Compare(ncclFloat32, exact, actual.data()),
              ::testing::HasSubstr("1 of 2 elements of float32 are wrong; the first is [0]"));
  actual[0] = 3.00001f;
  EXPECT_NE(Compare(ncclFloat32, rounded, actual.data()), "");
}

}  // namespace
}  // namespace tutti::oracle
