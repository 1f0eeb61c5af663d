#include "testing/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace tutti::oracle {
namespace {

// Holds the oracle's knowledge of a type, in the order of ncclDataType_t. The formats of
// floating-point numbers are written out here once more, apart from base/float_formats.h.
struct TypeFacts {
  std::string_view name;
  size_t size;
  bool is_float;
  bool is_signed;
  int exponent_bits;
  int mantissa_bits;
};
constexpr std::array<TypeFacts, 12> kTypes = {{
    {"int8", 1, false, true, 0, 0},
    {"uint8", 1, false, false, 0, 0},
    {"int32", 4, false, true, 0, 0},
    {"uint32", 4, false, false, 0, 0},
    {"int64", 8, false, true, 0, 0},
    {"uint64", 8, false, false, 0, 0},
    {"float16", 2, true, true, 5, 10},
    {"float32", 4, true, true, 8, 23},
    {"float64", 8, true, true, 11, 52},
    {"bfloat16", 2, true, true, 8, 7},
    {"float8e4m3", 1, true, true, 4, 3},
    {"float8e5m2", 1, true, true, 5, 2},
}};

const TypeFacts& FactsOf(ncclDataType_t type) { return kTypes[static_cast<size_t>(type)]; }

// Returns the bits of an element, zero-extended.
uint64_t Load(ncclDataType_t type, const void* element) {
  uint64_t bits = 0;
  std::memcpy(&bits, element, SizeOf(type));
  return bits;
}

void Store(ncclDataType_t type, uint64_t bits, void* element) {
  std::memcpy(element, &bits, SizeOf(type));
}

int Bias(const TypeFacts& facts) { return (1 << (facts.exponent_bits - 1)) - 1; }
// e4m3 gives up infinity for one more binade; only its last pattern is NaN.
bool HasInfinity(ncclDataType_t type) { return type != ncclFloat8e4m3; }
// Returns whether numbers beyond the range become the largest finite number. Both fp8 types
// saturate, though e5m2 has infinities.
bool Saturates(ncclDataType_t type) { return type == ncclFloat8e4m3 || type == ncclFloat8e5m2; }

long double LargestFinite(ncclDataType_t type) {
  const TypeFacts& facts = FactsOf(type);
  const long double ulp = std::ldexp(1.0L, -facts.mantissa_bits);
  if (!HasInfinity(type)) return std::ldexp(2 - 2 * ulp, Bias(facts) + 1);
  return std::ldexp(2 - ulp, Bias(facts));
}

// Returns the pattern that the library stores for NaN: all ones in fp8, else the quiet NaN.
uint64_t NanBits(ncclDataType_t type) {
  const TypeFacts& facts = FactsOf(type);
  if (Saturates(type)) return (1u << (facts.exponent_bits + facts.mantissa_bits)) - 1;
  const uint64_t exponent = (uint64_t{1} << facts.exponent_bits) - 1;
  return exponent << facts.mantissa_bits | uint64_t{1} << (facts.mantissa_bits - 1);
}

// Returns the bits of a non-negative finite number that is an element of the type.
uint64_t Encode(const TypeFacts& facts, long double value) {
  const int lowest = 1 - Bias(facts);
  if (value < std::ldexp(1.0L, lowest))  // zero and subnormal numbers
    return static_cast<uint64_t>(std::ldexp(value, facts.mantissa_bits - lowest));
  const int exponent = std::ilogb(value);
  const auto fraction = static_cast<uint64_t>(std::ldexp(value, facts.mantissa_bits - exponent));
  const uint64_t hidden = uint64_t{1} << facts.mantissa_bits;
  return static_cast<uint64_t>(exponent + Bias(facts)) << facts.mantissa_bits | (fraction - hidden);
}

// Works in 64 bits and wraps once at the end, with the same result as wrapping after each step.
// Averages divide the wrapped sum.
Expected ReduceIntegers(const Reduction& reduction, std::span<const void* const> inputs,
                        size_t count) {
  const ncclDataType_t type = reduction.type;
  const size_t size = SizeOf(type);
  Expected expected;
  expected.elements.resize(count * size);
  for (size_t i = 0; i < count; ++i) {
    uint64_t result = 0;
    for (size_t r = 0; r < inputs.size(); ++r) {
      uint64_t value = ToInteger(type, static_cast<const std::byte*>(inputs[r]) + i * size);
      if (reduction.op == Op::kPreMulSum) value *= ToInteger(type, &reduction.scalars[r]);
      const bool less = IsSigned(type) ? static_cast<int64_t>(value) < static_cast<int64_t>(result)
                                       : value < result;
      if (r == 0)
        result = value;
      else if (reduction.op == Op::kProd)
        result *= value;
      else if (reduction.op == Op::kMin)
        result = less ? value : result;
      else if (reduction.op == Op::kMax)
        result = less ? result : value;
      else
        result += value;
    }
    std::byte* const out = expected.elements.data() + i * size;
    FromInteger(type, result, out);
    if (reduction.op != Op::kAvg) continue;
    const uint64_t wrapped = ToInteger(type, out);
    const auto n = static_cast<int64_t>(inputs.size());
    FromInteger(type,
                IsSigned(type) ? static_cast<uint64_t>(static_cast<int64_t>(wrapped) / n)
                               : wrapped / static_cast<uint64_t>(n),
                out);
  }
  return expected;
}

// Holds the result for one element, and the magnitude to which rounding errors are relative: the
// product's, or the sum of the magnitudes of the summands.
struct Real {
  long double value;
  long double magnitude;
};

// Combines the elements of all ranks as if nothing were rounded: long double is wider than every
// type of elements.
Real Combine(const Reduction& reduction, std::span<const long double> values) {
  Real real = {values[0], std::fabs(values[0])};
  for (size_t r = 1; r < values.size(); ++r) {
    const long double v = values[r];
    switch (reduction.op) {
      case Op::kProd:
        real.value *= v;
        real.magnitude = std::fabs(real.value);
        break;
      case Op::kMax:
        real.value = std::isnan(v) || v > real.value ? v : real.value;
        break;
      case Op::kMin:
        real.value = std::isnan(v) || v < real.value ? v : real.value;
        break;
      default:
        real.value += v;
        real.magnitude += std::fabs(v);
    }
  }
  return real;
}

// Computes results and tolerances. The tolerance covers every order of the ranks, with a rounding
// to the type after each step.
Expected ReduceReals(const Reduction& reduction, std::span<const void* const> inputs,
                     size_t count) {
  const ncclDataType_t type = reduction.type;
  const size_t size = SizeOf(type);
  const auto n = static_cast<long double>(inputs.size());
  const bool exact = reduction.exact || reduction.op == Op::kMin || reduction.op == Op::kMax;
  Expected expected;
  expected.elements.resize(count * size);
  if (!exact) expected.tolerance.resize(count);
  std::vector<long double> values(inputs.size());
  for (size_t i = 0; i < count; ++i) {
    for (size_t r = 0; r < inputs.size(); ++r) {
      values[r] = ToReal(type, static_cast<const std::byte*>(inputs[r]) + i * size);
      if (reduction.op == Op::kAvg) values[r] /= n;
      if (reduction.op == Op::kPreMulSum) values[r] *= ToReal(type, &reduction.scalars[r]);
    }
    const Real real = Combine(reduction, values);
    std::byte* const out = expected.elements.data() + i * size;
    FromReal(type, real.value, out);
    if (reduction.op == Op::kMin || reduction.op == Op::kMax) {
      // The result is one of the elements; rounding it would lose the infinities of e5m2.
      const auto chosen = std::find(values.begin(), values.end(), real.value);
      if (chosen != values.end()) {
        const auto* const array =
            static_cast<const std::byte*>(inputs[static_cast<size_t>(chosen - values.begin())]);
        std::copy_n(array + i * size, size, out);
      }
    }
    if (exact) continue;
    // n - 1 steps, the scaling, its scalar, and the expected element itself, each rounded once.
    const long double relative = (n + 2) * UnitRoundoff(type) * 1.05L;
    expected.tolerance[i] =
        static_cast<double>(relative * real.magnitude + n * SmallestNumber(type));
  }
  return expected;
}

// Returns whether two elements count as equal. All patterns of NaN are one value.
bool Agrees(ncclDataType_t type, const std::byte* expected, const std::byte* actual,
            double tolerance, bool bitwise) {
  if (std::memcmp(expected, actual, SizeOf(type)) == 0) return true;
  if (bitwise || !IsFloat(type)) return false;
  const long double want = ToReal(type, expected);
  const long double have = ToReal(type, actual);
  if (std::isnan(want) || std::isnan(have)) return std::isnan(want) && std::isnan(have);
  if (std::isinf(want) || std::isinf(have)) return want == have;
  return std::fabs(want - have) <= tolerance;
}

std::string Show(ncclDataType_t type, const std::byte* element) {
  const uint64_t bits = Load(type, element);
  if (IsFloat(type))
    return fmt::format("{:.9g} ({:#x})", static_cast<double>(ToReal(type, element)), bits);
  if (IsSigned(type))
    return fmt::format("{} ({:#x})", static_cast<int64_t>(ToInteger(type, element)), bits);
  return fmt::format("{} ({:#x})", bits, bits);
}

}  // namespace

size_t SizeOf(ncclDataType_t type) { return FactsOf(type).size; }
bool IsFloat(ncclDataType_t type) { return FactsOf(type).is_float; }
bool IsSigned(ncclDataType_t type) { return FactsOf(type).is_signed; }
std::string_view Name(ncclDataType_t type) { return FactsOf(type).name; }

std::string_view Name(Op op) {
  constexpr std::array<std::string_view, kNumOps> kNames = {"sum", "prod", "max",
                                                            "min", "avg",  "premulsum"};
  return kNames[static_cast<size_t>(op)];
}

long double UnitRoundoff(ncclDataType_t type) {
  return std::ldexp(1.0L, -FactsOf(type).mantissa_bits - 1);
}

long double SmallestNumber(ncclDataType_t type) {
  const TypeFacts& facts = FactsOf(type);
  return std::ldexp(1.0L, 1 - Bias(facts) - facts.mantissa_bits);
}

long double ToReal(ncclDataType_t type, const void* element) {
  // The compiler converts these two types, which is faster for long arrays; oracle_test compares
  // the conversion with the code below.
  if (type == ncclFloat32) {
    float value;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  if (type == ncclFloat64) {
    double value;
    std::memcpy(&value, element, sizeof(value));
    return value;
  }
  const TypeFacts& facts = FactsOf(type);
  const uint64_t bits = Load(type, element);
  const uint64_t mantissa = bits & ((uint64_t{1} << facts.mantissa_bits) - 1);
  const uint64_t all_ones = (uint64_t{1} << facts.exponent_bits) - 1;
  const uint64_t exponent = bits >> facts.mantissa_bits & all_ones;
  const bool negative = bits >> (facts.exponent_bits + facts.mantissa_bits) & 1;
  long double value;
  if (HasInfinity(type) && exponent == all_ones)
    value = mantissa == 0 ? std::numeric_limits<long double>::infinity()
                          : std::numeric_limits<long double>::quiet_NaN();
  else if (!HasInfinity(type) && exponent == all_ones && mantissa == 7)
    value = std::numeric_limits<long double>::quiet_NaN();
  else if (exponent == 0)
    value = static_cast<long double>(mantissa) * SmallestNumber(type);
  else
    value = std::ldexp(1 + std::ldexp(static_cast<long double>(mantissa), -facts.mantissa_bits),
                       static_cast<int>(exponent) - Bias(facts));
  return negative ? -value : value;
}

void FromReal(ncclDataType_t type, long double value, void* element) {
  if (type == ncclFloat32 && !std::isnan(value)) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(element, &narrow, sizeof(narrow));
    return;
  }
  const TypeFacts& facts = FactsOf(type);
  const uint64_t sign = uint64_t{std::signbit(value)}
                        << (facts.exponent_bits + facts.mantissa_bits);
  if (std::isnan(value)) return Store(type, NanBits(type), element);
  long double rounded = std::fabs(value);
  if (rounded != 0 && !std::isinf(rounded)) {
    // The distance of neighbouring elements at this value; below the normal range the distance
    // stays the same.
    const int exponent = std::max(std::ilogb(rounded), 1 - Bias(facts)) - facts.mantissa_bits;
    rounded = std::ldexp(std::rint(std::ldexp(rounded, -exponent)), exponent);
  }
  if (rounded > LargestFinite(type)) {
    if (!Saturates(type)) {
      const uint64_t infinity = ((uint64_t{1} << facts.exponent_bits) - 1) << facts.mantissa_bits;
      return Store(type, sign | infinity, element);
    }
    rounded = LargestFinite(type);
  }
  Store(type, sign | Encode(facts, rounded), element);
}

uint64_t ToInteger(ncclDataType_t type, const void* element) {
  const uint64_t bits = Load(type, element);
  const auto width = static_cast<unsigned>(8 * SizeOf(type));
  if (!IsSigned(type) || width == 64 || (bits >> (width - 1) & 1) == 0) return bits;
  return bits | ~uint64_t{0} << width;
}

void FromInteger(ncclDataType_t type, uint64_t value, void* element) {
  Store(type, value, element);
}

Expected Reduce(const Reduction& reduction, std::span<const void* const> inputs, size_t count) {
  return IsFloat(reduction.type) ? ReduceReals(reduction, inputs, count)
                                 : ReduceIntegers(reduction, inputs, count);
}

namespace {

// Returns x times y rounded to the type, as a deterministic reduction scales its inputs.
template <class Wide>
Wide ScaledElement(ncclDataType_t type, Wide x, Wide y) {
  const Wide product = x * y;  // exact for types narrower than float
  if (type == ncclFloat32 || type == ncclFloat64) return product;
  uint64_t bits = 0;
  FromReal(type, product, &bits);
  return static_cast<Wide>(ToReal(type, &bits));
}

// Returns whether a is smaller than b, where -0 is smaller than +0.
template <class Wide>
bool IsLess(Wide a, Wide b) {
  return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

// Returns the result for one element, with the ranks taken in order. `chosen` receives the rank of
// the element that a minimum or maximum is.
template <class Wide>
Wide InOrder(const Reduction& reduction, std::span<const void* const> inputs, size_t at,
             size_t* chosen) {
  const ncclDataType_t type = reduction.type;
  Wide result = 0;
  for (size_t r = 0; r < inputs.size(); ++r) {
    const void* const element = static_cast<const std::byte*>(inputs[r]) + at;
    auto value = static_cast<Wide>(ToReal(type, element));
    if (reduction.op == Op::kPreMulSum)
      value = ScaledElement(type, value, static_cast<Wide>(ToReal(type, &reduction.scalars[r])));
    const bool takes = r == 0 || std::isnan(value) ||
                       (reduction.op == Op::kMin ? IsLess(value, result) : IsLess(result, value));
    if (r == 0) {
      result = value;
    } else if (reduction.op == Op::kMin || reduction.op == Op::kMax) {
      if (takes && !std::isnan(result)) {
        result = value;
        *chosen = r;
      }
    } else if (reduction.op == Op::kProd) {
      result *= value;
    } else {
      result += value;
    }
  }
  if (reduction.op == Op::kAvg) result /= static_cast<Wide>(inputs.size());
  return result;
}

}  // namespace

Expected ReduceInOrder(const Reduction& reduction, std::span<const void* const> inputs,
                       size_t count) {
  const ncclDataType_t type = reduction.type;
  if (!IsFloat(type)) return ReduceIntegers(reduction, inputs, count);
  const size_t size = SizeOf(type);
  Expected expected;
  expected.bitwise = true;
  expected.elements.resize(count * size);
  for (size_t i = 0; i < count; ++i) {
    std::byte* const out = expected.elements.data() + i * size;
    size_t chosen = 0;
    const long double result = type == ncclFloat64
                                   ? InOrder<double>(reduction, inputs, i * size, &chosen)
                                   : InOrder<float>(reduction, inputs, i * size, &chosen);
    FromReal(type, result, out);
    const bool chooses = reduction.op == Op::kMin || reduction.op == Op::kMax;
    // The result is one of the elements; rounding it would lose the infinities of e5m2.
    if (chooses && !std::isnan(result))
      std::copy_n(static_cast<const std::byte*>(inputs[chosen]) + i * size, size, out);
  }
  return expected;
}

Expected Copy(ncclDataType_t type, const void* elements, size_t count) {
  Expected expected;
  const auto* const first = static_cast<const std::byte*>(elements);
  expected.elements.assign(first, first + count * SizeOf(type));
  expected.bitwise = true;
  return expected;
}

std::string Compare(ncclDataType_t type, const Expected& expected, const void* actual) {
  const size_t size = SizeOf(type);
  const size_t count = expected.elements.size() / size;
  const auto* const bytes = static_cast<const std::byte*>(actual);
  if (count == 0 || std::memcmp(expected.elements.data(), bytes, count * size) == 0) return "";
  size_t wrong = 0;
  size_t first = 0;
  for (size_t i = 0; i < count; ++i) {
    const double tolerance = expected.tolerance.empty() ? 0 : expected.tolerance[i];
    if (Agrees(type, expected.elements.data() + i * size, bytes + i * size, tolerance,
               expected.bitwise))
      continue;
    if (wrong++ == 0) first = i;
  }
  if (wrong == 0) return "";
  return fmt::format("{} of {} elements of {} are wrong; the first is [{}]: {} instead of {}",
                     wrong, count, Name(type), first, Show(type, bytes + first * size),
                     Show(type, expected.elements.data() + first * size));
}

}  // namespace tutti::oracle
