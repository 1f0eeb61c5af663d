#include "perf/numbers.h"

#include <bit>
#include <cmath>
#include <limits>

#include "library.h"

namespace tutti::tools {

bool IsFloat(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
    case ncclFloat32:
    case ncclFloat64:
    case ncclBfloat16:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return true;
    default:
      return false;
  }
}

bool IsSigned(ncclDataType_t type) {
  return type != ncclUint8 && type != ncclUint32 && type != ncclUint64;
}

FloatFormat FormatOf(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
      return {5, 10, true};
    case ncclBfloat16:
      return {8, 7, true};
    case ncclFloat8e4m3:
      return {4, 3, false};
    case ncclFloat8e5m2:
      return {5, 2, true};
    case ncclFloat32:
      return {8, 23, true};
    default:
      return {11, 52, true};
  }
}

double DecodeFloat(ncclDataType_t type, uint64_t bits) {
  const FloatFormat format = FormatOf(type);
  const uint64_t mantissa = bits & ((uint64_t{1} << format.mantissa_bits) - 1);
  const uint64_t top_exponent = (uint64_t{1} << format.exponent_bits) - 1;
  const uint64_t exponent = (bits >> format.mantissa_bits) & top_exponent;
  const bool negative = (bits >> (format.mantissa_bits + format.exponent_bits)) & 1;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  double value = 0;
  const bool all_ones = mantissa == (uint64_t{1} << format.mantissa_bits) - 1;
  if (exponent == top_exponent && (format.has_infinity || all_ones)) {
    value = format.has_infinity && mantissa == 0 ? std::numeric_limits<double>::infinity()
                                                 : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - format.mantissa_bits);
  } else {
    const auto significand = static_cast<double>(mantissa | (uint64_t{1} << format.mantissa_bits));
    value = std::ldexp(significand, static_cast<int>(exponent) - bias - format.mantissa_bits);
  }
  return negative ? -value : value;
}

uint64_t EncodeFloat(ncclDataType_t type, double value) {
  const FloatFormat format = FormatOf(type);
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const uint64_t top_exponent = (uint64_t{1} << format.exponent_bits) - 1;
  const uint64_t sign = uint64_t{std::signbit(value)}
                        << (format.mantissa_bits + format.exponent_bits);
  const uint64_t nan = (top_exponent << format.mantissa_bits) |
                       (format.has_infinity ? uint64_t{1} << (format.mantissa_bits - 1)
                                            : (uint64_t{1} << format.mantissa_bits) - 1);
  const uint64_t overflow = format.has_infinity ? top_exponent << format.mantissa_bits : nan;
  if (std::isnan(value)) return sign | nan;
  if (std::isinf(value)) return sign | overflow;
  if (value == 0) return sign;
  // The exponent of the element's lowest bit: the value's, but never below the subnormal numbers'.
  const int lowest_bit = std::max(std::ilogb(value), 1 - bias) - format.mantissa_bits;
  // nearbyint rounds ties to even. A significand that rounds up to the next power of two carries
  // into the exponent.
  const auto significand =
      static_cast<uint64_t>(std::nearbyint(std::ldexp(std::fabs(value), -lowest_bit)));
  const int exponent = lowest_bit + format.mantissa_bits + bias;
  const uint64_t hidden = uint64_t{1} << format.mantissa_bits;
  if (significand < hidden) return sign | significand;
  const uint64_t bits =
      (static_cast<uint64_t>(exponent) << format.mantissa_bits) + (significand - hidden);
  return sign | (bits >= overflow ? overflow : bits);
}

int64_t DecodeInteger(ncclDataType_t type, uint64_t bits) {
  const int unused = 64 - static_cast<int>(ElementSize(type)) * 8;
  const uint64_t shifted = bits << unused;
  return IsSigned(type) ? static_cast<int64_t>(shifted) >> unused
                        : static_cast<int64_t>(shifted >> unused);
}

int64_t ExactIntegers(ncclDataType_t type) {
  if (IsFloat(type)) return int64_t{1} << (FormatOf(type).mantissa_bits + 1);
  const int bits = static_cast<int>(ElementSize(type)) * 8 - (IsSigned(type) ? 1 : 0);
  return bits >= 63 ? std::numeric_limits<int64_t>::max() : (int64_t{1} << bits) - 1;
}

double RoundingError(ncclDataType_t type) {
  return std::ldexp(1.0, -FormatOf(type).mantissa_bits - 1);
}

}  // namespace tutti::tools
