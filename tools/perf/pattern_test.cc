#include "perf/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "library.h"
#include "perf/numbers.h"

namespace tutti::tools {
namespace {

constexpr size_t kCount = Pattern::kPeriod + 500;

std::vector<char> InputOf(Pattern* pattern, ncclDataType_t type, int rank) {
  std::vector<char> data(kCount * ElementSize(type));
  pattern->Fill(data.data(), rank, 0, kCount);
  return data;
}

uint64_t BitsAt(const std::vector<char>& data, ncclDataType_t type, size_t index) {
  uint64_t bits = 0;
  std::memcpy(&bits, &data[index * ElementSize(type)], ElementSize(type));
  return bits;
}

// Reduces in the order of `order`, rounding to the type after every step, as the strictest library
// may.
double ReduceRounded(ncclDataType_t type, Reduction reduction, Pattern* pattern,
                     const std::vector<int>& order, const std::vector<std::vector<char>>& inputs,
                     size_t index) {
  double result = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto rank = static_cast<size_t>(order[i]);
    double value = DecodeFloat(type, BitsAt(inputs[rank], type, index));
    if (reduction == Reduction::kMulSum) {
      value = DecodeFloat(type,
                          EncodeFloat(type, value * DecodeFloat(type, pattern->Scalar(order[i]))));
    }
    if (i == 0) {
      result = value;
    } else if (reduction == Reduction::kProd) {
      result *= value;
    } else if (reduction == Reduction::kMin) {
      result = std::min(result, value);
    } else if (reduction == Reduction::kMax) {
      result = std::max(result, value);
    } else {
      result += value;
    }
    result = DecodeFloat(type, EncodeFloat(type, result));
  }
  return reduction == Reduction::kAvg ? result / static_cast<double>(order.size()) : result;
}

using Case = std::tuple<ncclDataType_t, Reduction, int>;
class FloatPattern : public testing::TestWithParam<Case> {};

TEST_P(FloatPattern, IsExactInAnyOrder) {
  const auto [type, reduction, num_ranks] = GetParam();
  Pattern pattern(type, reduction, num_ranks);
  std::vector<std::vector<char>> inputs;
  std::vector<int> forward;
  for (int rank = 0; rank < num_ranks; ++rank) {
    inputs.push_back(InputOf(&pattern, type, rank));
    forward.push_back(rank);
  }
  const std::vector<int> backward(forward.rbegin(), forward.rend());
  for (const auto& order : {forward, backward}) {
    std::vector<char> result(kCount * ElementSize(type));
    for (size_t i = 0; i < kCount; ++i) {
      const uint64_t bits =
          EncodeFloat(type, ReduceRounded(type, reduction, &pattern, order, inputs, i));
      std::memcpy(&result[i * ElementSize(type)], &bits, ElementSize(type));
    }
    size_t first = 0;
    std::string sentence;
    EXPECT_EQ(pattern.CountWrong(result.data(), Region::kReduced, 0, kCount, &first, &sentence), 0u)
        << "element " << first << ": " << sentence;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, FloatPattern,
    testing::Combine(testing::Values(ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64,
                                     ncclFloat8e4m3, ncclFloat8e5m2),
                     testing::Values(Reduction::kSum, Reduction::kProd, Reduction::kMin,
                                     Reduction::kMax, Reduction::kAvg, Reduction::kMulSum),
                     testing::Values(1, 2, 3, 4, 7, 33)));

TEST(Pattern, IntegersWrap) {
  Pattern pattern(ncclInt8, Reduction::kSum, 3);
  std::vector<char> sum(kCount, 0);
  for (int rank = 0; rank < 3; ++rank) {
    const auto input = InputOf(&pattern, ncclInt8, rank);
    for (size_t i = 0; i < kCount; ++i) sum[i] = static_cast<char>(sum[i] + input[i]);
  }
  size_t first = 0;
  std::string sentence;
  EXPECT_EQ(pattern.CountWrong(sum.data(), Region::kReduced, 0, kCount, &first, &sentence), 0u)
      << sentence;
}

TEST(Pattern, IntegerAverageTruncates) {
  Pattern pattern(ncclInt32, Reduction::kAvg, 3);
  std::vector<int64_t> sums(kCount, 0);
  bool has_negative_rest = false;
  for (int rank = 0; rank < 3; ++rank) {
    const auto input = InputOf(&pattern, ncclInt32, rank);
    for (size_t i = 0; i < kCount; ++i)
      sums[i] += DecodeInteger(ncclInt32, BitsAt(input, ncclInt32, i));
  }
  std::vector<int32_t> average(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    average[i] = static_cast<int32_t>(sums[i] / 3);
    has_negative_rest |= sums[i] < 0 && sums[i] % 3 != 0;
  }
  EXPECT_TRUE(has_negative_rest);
  size_t first = 0;
  std::string sentence;
  EXPECT_EQ(pattern.CountWrong(average.data(), Region::kReduced, 0, kCount, &first, &sentence), 0u)
      << sentence;
}

TEST(Pattern, FindsWhatIsWrong) {
  Pattern pattern(ncclFloat32, Reduction::kSum, 2);
  std::vector<float> result(kCount);
  const auto a = InputOf(&pattern, ncclFloat32, 0);
  const auto b = InputOf(&pattern, ncclFloat32, 1);
  for (size_t i = 0; i < kCount; ++i) {
    result[i] = static_cast<float>(DecodeFloat(ncclFloat32, BitsAt(a, ncclFloat32, i)) +
                                   DecodeFloat(ncclFloat32, BitsAt(b, ncclFloat32, i)));
  }
  result[4200] += 1;
  result[4300] = 0.5F;
  size_t first = 0;
  std::string sentence;
  EXPECT_EQ(pattern.CountWrong(result.data(), Region::kReduced, 0, kCount, &first, &sentence), 2u);
  EXPECT_EQ(first, 4200u);
  EXPECT_THAT(sentence, testing::HasSubstr("where"));
}

// A block that lands a power of two off, or comes from another rank, must not look right.
TEST(Pattern, DisplacementShows) {
  Pattern pattern(ncclInt32, Reduction::kNone, 4);
  std::vector<int32_t> data(8192);
  size_t first = 0;
  std::string sentence;
  for (size_t shift = 1; shift <= 65536; shift *= 2) {
    pattern.Fill(data.data(), 1, shift, data.size());
    EXPECT_GT(pattern.CountWrong(data.data(), 1, 0, data.size(), &first, &sentence), 8000u)
        << shift;
    EXPECT_EQ(pattern.CountWrong(data.data(), 1, shift, data.size(), &first, &sentence), 0u)
        << shift;
    EXPECT_GT(pattern.CountWrong(data.data(), 2, shift, data.size(), &first, &sentence), 8000u)
        << shift;
  }
}

TEST(Pattern, ToleranceOfAveragesIsSmall) {
  Pattern pattern(ncclFloat32, Reduction::kAvg, 3);
  const std::vector<float> zeros(kCount, 1e5F);
  size_t first = 0;
  std::string sentence;
  EXPECT_GT(pattern.CountWrong(zeros.data(), Region::kReduced, 0, kCount, &first, &sentence),
            kCount / 2);
}

}  // namespace
}  // namespace tutti::tools
