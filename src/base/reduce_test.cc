#include "base/reduce.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/copy.h"
#include "base/reduce_targets.h"
#include "testing/narrow_oracle.h"

// The oracle below computes an element at a time with the language's own numbers and shares no code
// with the kernels.

namespace tutti {
namespace {

constexpr size_t kElements = 1500;
constexpr uint8_t kGuard = 0xa5;

bool IsSigned(DataType type) {
  return type == DataType::kInt8 || type == DataType::kInt32 || type == DataType::kInt64;
}

__int128 AsInteger(DataType type, uint64_t bits) {
  const int unused = 64 - 8 * static_cast<int>(SizeOf(type));
  if (!IsSigned(type)) return (bits << unused) >> unused;
  return static_cast<int64_t>(bits << unused) >> unused;
}

uint64_t Truncate(DataType type, uint64_t bits) {
  const int unused = 64 - 8 * static_cast<int>(SizeOf(type));
  return (bits << unused) >> unused;
}

bool IsScaled(const ReduceArgs& args, size_t s) {
  return static_cast<int>(s) >= args.scale_begin && static_cast<int>(s) < args.scale_end;
}

bool ScalesAny(const ReduceArgs& args) { return args.scale_begin < args.scale_end; }

uint64_t OracleInteger(DataType type, ReduceKind kind, std::span<const uint64_t> sources,
                       const ReduceArgs& args) {
  uint64_t result = 0;
  for (size_t s = 0; s < sources.size(); ++s) {
    uint64_t x = sources[s];
    if (IsScaled(args, s)) x = Truncate(type, x * args.scalar);
    if (s == 0) {
      result = x;
    } else if (kind == ReduceKind::kSum) {
      result = Truncate(type, result + x);
    } else if (kind == ReduceKind::kProd) {
      result = Truncate(type, result * x);
    } else {
      const bool greater = AsInteger(type, x) > AsInteger(type, result);
      if (greater == (kind == ReduceKind::kMax)) result = x;
    }
  }
  if (args.divisor != 0) {
    result = Truncate(
        type, static_cast<uint64_t>(AsInteger(type, result) / static_cast<__int128>(args.divisor)));
  }
  return result;
}

// T is the type of the arithmetic: float for everything but double.
template <typename T>
T OracleFloat(ReduceKind kind, std::span<const T> sources, T scalar, const ReduceArgs& args) {
  // volatile: each step is rounded, whatever the compiler would like to fuse.
  volatile T result = 0;
  for (size_t s = 0; s < sources.size(); ++s) {
    volatile T x = sources[s];
    if (IsScaled(args, s)) x = x * scalar;
    const T a = result;
    const T b = x;
    if (s == 0) {
      result = b;
    } else if (kind == ReduceKind::kSum) {
      result = a + b;
    } else if (kind == ReduceKind::kProd) {
      result = a * b;
    } else if (std::isnan(a) || std::isnan(b)) {
      result = std::numeric_limits<T>::quiet_NaN();
    } else if (a == b) {
      // Only zeros can differ here: -0 is below +0.
      result = std::signbit(a) == (kind == ReduceKind::kMin) ? a : b;
    } else {
      result = (a > b) == (kind == ReduceKind::kMax) ? a : b;
    }
  }
  if (args.divisor != 0) result = result / static_cast<T>(args.divisor);
  const T last = result;
  return std::isnan(last) ? std::numeric_limits<T>::quiet_NaN() : last;
}

uint64_t OracleNarrow(DataType type, ReduceKind kind, std::span<const uint64_t> sources,
                      const ReduceArgs& args) {
  const NarrowFormat format = *Narrow(type);
  std::vector<float> values;
  for (uint64_t bits : sources) values.push_back(static_cast<float>(DecodeNarrow(format, bits)));
  const float scalar = static_cast<float>(DecodeNarrow(format, args.scalar));
  const float result = OracleFloat<float>(kind, values, scalar, args);
  const bool keeps_elements = kind == ReduceKind::kMax || kind == ReduceKind::kMin;
  if (keeps_elements && !ScalesAny(args) && args.divisor == 0 && std::isinf(result)) {
    // Untouched, an infinity stays an infinity even in the types that saturate.
    for (size_t s = 0; s < sources.size(); ++s) {
      if (values[s] == result) return sources[s];
    }
  }
  return EncoderOf(type).Encode(result);
}

uint64_t Oracle(DataType type, ReduceKind kind, std::span<const uint64_t> sources,
                ReduceArgs args) {
  // Bits beyond the sources mean nothing.
  args.scale_end = std::min(args.scale_end, static_cast<int>(sources.size()));
  if (sources.size() == 1 && !ScalesAny(args) && args.divisor == 0) return sources[0];
  if (!IsFloat(type)) return OracleInteger(type, kind, sources, args);
  if (Narrow(type)) return OracleNarrow(type, kind, sources, args);
  if (type == DataType::kFloat32) {
    std::vector<float> values;
    for (uint64_t bits : sources)
      values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    const float scalar = std::bit_cast<float>(static_cast<uint32_t>(args.scalar));
    return std::bit_cast<uint32_t>(OracleFloat<float>(kind, values, scalar, args));
  }
  std::vector<double> values;
  for (uint64_t bits : sources) values.push_back(std::bit_cast<double>(bits));
  return std::bit_cast<uint64_t>(
      OracleFloat<double>(kind, values, std::bit_cast<double>(args.scalar), args));
}

// ---------------------------------------------------------------------------------------------------------------

uint64_t ReadElement(DataType type, const uint8_t* array, size_t i) {
  uint64_t bits = 0;
  std::memcpy(&bits, array + i * SizeOf(type), SizeOf(type));
  return bits;
}

void WriteElement(DataType type, uint8_t* array, size_t i, uint64_t bits) {
  std::memcpy(array + i * SizeOf(type), &bits, SizeOf(type));
}

// Any pattern, the troublesome patterns often: for floats half of the elements lie near 1, to keep
// sums and products of many in range.
uint64_t RandomElement(DataType type, std::mt19937_64& random) {
  const uint64_t any = random();
  if (!IsFloat(type)) {
    static constexpr uint64_t kSpecial[] = {0,    1,          ~uint64_t{0}, 0x80,
                                            0x7f, 0x80000000, 0x7fffffff,   uint64_t{1} << 63};
    return Truncate(type, any % 8 == 0 ? kSpecial[(any >> 8) % 8] : random());
  }
  const uint64_t sign = uint64_t{1} << (8 * SizeOf(type) - 1);
  switch (any % 16) {
    case 0:
      return (any >> 32) & sign;  // zero
    case 1:
      return Truncate(type, random() & 0x8000000000000f0f);  // subnormal, mostly
    case 2:
      return ScalarBits(type, std::numeric_limits<double>::infinity()) | ((any >> 32) & sign);
    case 3:
      return any & 0xf0000 ? ScalarBits(type, 2.0)
                           : ScalarBits(type, std::nan("")) | ((any >> 32) & sign);
    case 4:
    case 5:
    case 6:
    case 7:
      return Truncate(type, random());
    default:
      return ScalarBits(type, 0.5 + 1.5 * static_cast<double>(random() >> 11) * 0x1p-53) |
             ((any >> 32) & sign);
  }
}

struct Inputs {
  std::vector<std::vector<uint8_t>> sources;
  std::vector<uint8_t> expected;
};

Inputs MakeInputs(DataType type, ReduceKind kind, int num_sources, size_t count,
                  const ReduceArgs& args, std::mt19937_64& random) {
  Inputs inputs;
  inputs.expected.resize(count * SizeOf(type));
  for (int s = 0; s < num_sources; ++s) {
    inputs.sources.emplace_back(count * SizeOf(type));
    for (size_t i = 0; i < count; ++i)
      WriteElement(type, inputs.sources.back().data(), i, RandomElement(type, random));
  }
  std::vector<uint64_t> elements(inputs.sources.size());
  for (size_t i = 0; i < count; ++i) {
    for (size_t s = 0; s < elements.size(); ++s)
      elements[s] = ReadElement(type, inputs.sources[s].data(), i);
    WriteElement(type, inputs.expected.data(), i, Oracle(type, kind, elements, args));
  }
  return inputs;
}

// The places of a call's arrays: how far each is from a 64-byte boundary, and which source is the
// destination.
struct Placement {
  size_t shift;
  std::optional<size_t> in_place;
};

// Runs `reduce` on the first `count` elements and compares the result, and the bytes around the
// result, with `inputs`.
testing::AssertionResult Check(ReduceFn reduce, const Inputs& inputs, DataType type, size_t count,
                               const ReduceArgs& args, Placement placement) {
  const size_t bytes = count * SizeOf(type);
  const size_t slot = (bytes + 3 * 64) / 64 * 64;
  const size_t num_sources = inputs.sources.size();
  std::vector<uint8_t> memory(slot * (num_sources + 1) + 64, kGuard);
  uint8_t* base = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
  std::vector<const void*> sources;
  for (size_t s = 0; s < num_sources; ++s) {
    uint8_t* at = base + s * slot + (placement.shift * (s + 1)) % 64;
    std::memcpy(at, inputs.sources[s].data(), bytes);
    sources.push_back(at);
  }
  uint8_t* dst = base + num_sources * slot + (placement.shift * 5) % 64;
  if (placement.in_place)
    dst = static_cast<uint8_t*>(const_cast<void*>(sources[*placement.in_place]));
  const std::vector<uint8_t> before = memory;
  reduce(dst, sources.data(), static_cast<int>(num_sources), count, args);

  for (size_t i = 0; i < count; ++i) {
    const uint64_t got = ReadElement(type, dst, i);
    const uint64_t want = ReadElement(type, inputs.expected.data(), i);
    if (got == want) continue;
    auto failure = testing::AssertionFailure() << fmt::format(
                       "element {} of {} is {:#x}, should be {:#x}; sources", i, count, got, want);
    for (size_t s = 0; s < std::min<size_t>(num_sources, 5); ++s) {
      failure << fmt::format(" {:#x}", ReadElement(type, inputs.sources[s].data(), i));
    }
    return failure << "; shift " << placement.shift;
  }
  std::memcpy(dst, before.data() + (dst - memory.data()), bytes);
  if (memory != before)
    return testing::AssertionFailure() << "bytes outside the result changed, count " << count;
  return testing::AssertionSuccess();
}

std::string Describe(const ReduceTarget& target, DataType type, ReduceKind kind, int num_sources,
                     const ReduceArgs& args) {
  static constexpr const char* kKinds[] = {"sum", "prod", "max", "min"};
  return std::string(target.name) + " " + std::string(Name(type)) + " " +
         kKinds[static_cast<int>(kind)] + " of " + std::to_string(num_sources) + ", scaled " +
         std::to_string(args.scale_begin) + " to " + std::to_string(args.scale_end) + ", divisor " +
         std::to_string(args.divisor);
}

class ReduceTypeTest : public testing::TestWithParam<DataType> {};

TEST_P(ReduceTypeTest, MatchesOracleOnEveryTargetCountAndPlacement) {
  const DataType type = GetParam();
  std::mt19937_64 random(20240 + static_cast<unsigned>(type));
  const uint64_t factor = ScalarBits(type, IsFloat(type) ? 0.3 : 3);
  ReduceArgs past_cache;
  past_cache.past_cache = true;
  const ReduceArgs variants[] = {past_cache,        {},           {factor, 0, 1000, 0},
                                 {factor, 1, 3, 0}, {0, 0, 0, 3}, {factor, 0, 1, 300}};
  for (int kind_index = 0; kind_index < kNumReduceKinds; ++kind_index) {
    const ReduceKind kind = static_cast<ReduceKind>(kind_index);
    for (int num_sources : {1, 2, 3, 4, 5, 70}) {
      for (const ReduceArgs& args : variants) {
        const Inputs inputs = MakeInputs(type, kind, num_sources, kElements, args, random);
        const bool plain = !ScalesAny(args) && args.divisor == 0 && !args.past_cache;
        for (const ReduceTarget& target : ReduceTargets()) {
          SCOPED_TRACE(Describe(target, type, kind, num_sources, args));
          const ReduceFn reduce = target.find(type, kind);
          for (size_t count = 0; count <= 130; count += plain && num_sources < 64 ? 1 : 13) {
            Placement placement{(count * 7 + 1) % 64, std::nullopt};
            ASSERT_TRUE(Check(reduce, inputs, type, count, args, placement));
            placement.in_place = count % static_cast<size_t>(num_sources);
            ASSERT_TRUE(Check(reduce, inputs, type, count, args, placement));
          }
          ASSERT_TRUE(Check(reduce, inputs, type, kElements, args, {0, std::nullopt}));
          ASSERT_TRUE(Check(reduce, inputs, type, kElements - 1, args, {SizeOf(type), 0}));
          ASSERT_TRUE(Check(reduce, inputs, type, kElements - 3, args, {3, std::nullopt}));
          ASSERT_TRUE(Check(reduce, inputs, type, kElements, args, {8, 0}));
          ASSERT_TRUE(Check(reduce, inputs, type, kElements, args, {8, std::nullopt}));
        }
      }
    }
  }
}

TEST_P(ReduceTypeTest, BigArraysAreTheSameOnEveryTarget) {
  const DataType type = GetParam();
  const size_t count = (size_t{3} << 20) / SizeOf(type) + 5;
  std::mt19937_64 random(7);
  std::vector<uint8_t> a(count * SizeOf(type)), b(a.size()), first(a.size()), other(a.size());
  for (size_t i = 0; i < count; ++i) {
    WriteElement(type, a.data(), i, RandomElement(type, random));
    WriteElement(type, b.data(), i, RandomElement(type, random));
  }
  const void* const sources[] = {a.data(), b.data()};
  for (ReduceKind kind : {ReduceKind::kSum, ReduceKind::kMax}) {
    ReduceTargets()[0].find(type, kind)(first.data(), sources, 2, count, {});
    for (size_t i = 0; i < count; i += 997) {
      const uint64_t pair[] = {ReadElement(type, a.data(), i), ReadElement(type, b.data(), i)};
      ASSERT_EQ(ReadElement(type, first.data(), i), Oracle(type, kind, pair, {})) << i;
    }
    for (const ReduceTarget& target : ReduceTargets()) {
      std::fill(other.begin(), other.end(), kGuard);
      target.find(type, kind)(other.data(), sources, 2, count, {});
      ASSERT_TRUE(other == first) << target.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ReduceTypeTest,
                         testing::Values(DataType::kInt8, DataType::kUint8, DataType::kInt32,
                                         DataType::kUint32, DataType::kInt64, DataType::kUint64,
                                         DataType::kFloat16, DataType::kFloat32, DataType::kFloat64,
                                         DataType::kBfloat16, DataType::kFloat8e4m3,
                                         DataType::kFloat8e5m2),
                         [](const auto& test) { return std::string(Name(test.param)); });

// Both operands take every pattern, so nothing about these types is left to sampling.
TEST(ReduceTest, EveryPairOfFloat8) {
  for (DataType type : {DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    std::vector<uint8_t> a, b;
    for (unsigned pair = 0; pair < 0x10000; ++pair) {
      a.push_back(static_cast<uint8_t>(pair >> 8));
      b.push_back(static_cast<uint8_t>(pair));
    }
    const void* const sources[] = {a.data(), b.data()};
    for (int kind = 0; kind < kNumReduceKinds; ++kind) {
      for (const ReduceTarget& target : ReduceTargets()) {
        std::vector<uint8_t> got(a.size());
        target.find(type, static_cast<ReduceKind>(kind))(got.data(), sources, 2, got.size(), {});
        for (size_t i = 0; i < got.size(); ++i) {
          const uint64_t pair[] = {a[i], b[i]};
          ASSERT_EQ(got[i], Oracle(type, static_cast<ReduceKind>(kind), pair, {}))
              << Describe(target, type, static_cast<ReduceKind>(kind), 2, {}) << ": " << pair[0]
              << ", " << pair[1];
        }
      }
    }
  }
}

// Every pattern survives widening and narrowing: scaled by 1, a pattern is itself (or the type's
// NaN, or the largest number where an infinity saturates).
TEST(ReduceTest, EveryPatternOfNarrowTypesSurvivesScalingByOne) {
  for (DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    const size_t patterns = size_t{1} << (8 * SizeOf(type));
    std::vector<uint8_t> all(patterns * SizeOf(type));
    for (size_t i = 0; i < patterns; ++i) WriteElement(type, all.data(), i, i);
    const void* const sources[] = {all.data()};
    const ReduceArgs args{.scalar = ScalarBits(type, 1), .scale_end = 1};
    for (const ReduceTarget& target : ReduceTargets()) {
      std::vector<uint8_t> got(all.size());
      target.find(type, ReduceKind::kSum)(got.data(), sources, 1, patterns, args);
      for (size_t i = 0; i < patterns; ++i) {
        const double value = DecodeNarrow(*Narrow(type), i);
        uint64_t want = i;
        if (!std::isfinite(value)) want = EncoderOf(type).Encode(value);
        ASSERT_EQ(ReadElement(type, got.data(), i), want)
            << target.name << " " << Name(type) << " " << i;
      }
    }
  }
}

// A product of two f16 or bf16 patterns has more bits than the format, and so lands on every kind
// of rounding.
TEST(ReduceTest, RoundingOfHalfTypesIsToNearestEven) {
  std::mt19937_64 random(11);
  for (DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    std::vector<uint16_t> a(1 << 18), b(a.size()), got(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<uint16_t>(random());
      // Every other pair is made for a product near the bottom of the range.
      const double small = std::ldexp(1.0 + static_cast<double>(random() % 1024) / 1024,
                                      type == DataType::kFloat16 ? -14 : -126);
      const double value = DecodeNarrow(*Narrow(type), a[i]);
      b[i] = static_cast<uint16_t>(
          i % 2 && std::isfinite(value) && value != 0 ? ScalarBits(type, small / value) : random());
    }
    const void* const sources[] = {a.data(), b.data()};
    for (ReduceKind kind : {ReduceKind::kSum, ReduceKind::kProd}) {
      std::vector<uint64_t> want(a.size());
      for (size_t i = 0; i < a.size(); ++i) {
        const uint64_t pair[] = {a[i], b[i]};
        want[i] = Oracle(type, kind, pair, {});
      }
      for (const ReduceTarget& target : ReduceTargets()) {
        target.find(type, kind)(got.data(), sources, 2, got.size(), {});
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_EQ(got[i], want[i])
              << Describe(target, type, kind, 2, {}) << ": " << a[i] << ", " << b[i];
        }
      }
    }
  }
}

TEST(ReduceTest, NansOfAnyPayloadAndOrderBecomeOneNan) {
  const uint32_t nans[] = {0x7fc00001, 0xffc12345, 0x7f800001, 0xff800001};
  for (const ReduceTarget& target : ReduceTargets()) {
    for (int kind = 0; kind < kNumReduceKinds; ++kind) {
      for (uint32_t x : nans) {
        for (uint32_t y : {x, nans[1], 0x3f800000u, 0xff800000u}) {
          const void* const forward[] = {&x, &y};
          const void* const backward[] = {&y, &x};
          for (const auto& sources : {forward, backward}) {
            uint32_t got = 0;
            target.find(DataType::kFloat32, static_cast<ReduceKind>(kind))(&got, sources, 2, 1, {});
            EXPECT_EQ(got, 0x7fc00000u) << target.name << " kind " << kind;
          }
        }
      }
    }
  }
}

TEST(ReduceTest, AlmostOneTimesAlmostOneIsNotFused) {
  // (1 + 2^-12)^2 needs 25 bits; adding -1 - 2^-11 to the unrounded product would leave 2^-24, to
  // the rounded product 0.
  const float x = 1.0f + 0x1p-12f;
  const float y = -1.0f - 0x1p-11f;
  const std::vector<float> a(64, x), b(64, y);
  const void* const sources[] = {b.data(), a.data()};
  for (const ReduceTarget& target : ReduceTargets()) {
    std::vector<float> got(64, 1);
    target.find(DataType::kFloat32, ReduceKind::kSum)(
        got.data(), sources, 2, 64,
        {.scalar = ScalarBits(DataType::kFloat32, x), .scale_begin = 1, .scale_end = 2});
    for (float value : got) EXPECT_EQ(value, 0.0f) << target.name;
  }
}

TEST(ReduceTest, ResultsLargeEnoughToPassTheCachesAreRight) {
  const size_t count = kPastCacheBytes / sizeof(float) + 3;
  std::vector<float> a(count), b(count), got(count + 1);
  for (size_t i = 0; i < count; ++i) {
    a[i] = static_cast<float>(i % 4099);
    b[i] = static_cast<float>(i % 257) * 0.5f;
  }
  const void* const sources[] = {a.data(), b.data()};
  for (const ReduceTarget& target : ReduceTargets()) {
    std::fill(got.begin(), got.end(), -1.0f);
    target.find(DataType::kFloat32, ReduceKind::kSum)(got.data(), sources, 2, count, {});
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], a[i] + b[i]) << target.name << " " << i;
    EXPECT_EQ(got[count], -1.0f);
  }
}

TEST(ReduceTest, FindReduceIsTheBestTarget) {
  ASSERT_FALSE(ReduceTargets().empty());
  for (int type = 0; type < kNumDataTypes; ++type) {
    for (int kind = 0; kind < kNumReduceKinds; ++kind) {
      const ReduceFn found = FindReduce(static_cast<DataType>(type), static_cast<ReduceKind>(kind));
      EXPECT_NE(found, nullptr);
      EXPECT_EQ(found, ReduceTargets()[0].find(static_cast<DataType>(type),
                                               static_cast<ReduceKind>(kind)));
    }
  }
}

}  // namespace
}  // namespace tutti
