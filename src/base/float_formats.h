#pragma once

// The narrow floating-point formats, element by element: their numbers, and conversion from and to
// double and float. The vector kernels (reduce.h) follow the same rules and take their constants
// from here. Pure, constexpr.
//
//   format      sign exponent mantissa  bias  overflow             NaN
//   Float16      1      5       10       15   infinity             0x7e00
//   Bfloat16     1      8        7      127   infinity             0x7fc0
//   Float8e4m3   1      4        3        7   448 (no infinity)    0x7f
//   Float8e5m2   1      5        2       15   57344 (saturates)    0x7f
//
// Conversion rounds once, to nearest even. Both fp8 formats saturate (as CUDA's __nv_fp8
// constructors do): numbers that are too large, infinity included, become the largest finite
// number. An infinity that is already stored in an e5m2 element is read as infinity. Any NaN
// becomes the positive NaN of the table.

#include <bit>
#include <cstdint>

namespace tutti {

// kInfinite: the all-ones exponent means infinity and NaN, as in IEEE 754; else only the last
// pattern is NaN.
template <typename BitsT, int kExponent, int kMantissa, bool kInfinite, bool kSaturates,
          BitsT kNanBits>
struct FloatFormat {
  using Bits = BitsT;
  static constexpr int kExponentBits = kExponent;
  static constexpr int kMantissaBits = kMantissa;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr Bits kNan = kNanBits;
  static constexpr Bits kSignBit = static_cast<Bits>(1u << (kExponent + kMantissa));
  static constexpr Bits kMagnitudeMask = static_cast<Bits>(kSignBit - 1);
  static constexpr bool kHasInfinity = kInfinite;
  static constexpr Bits kInfinity = static_cast<Bits>(((1u << kExponent) - 1) << kMantissa);
  // The largest magnitude pattern that is not NaN.
  static constexpr Bits kLargest = kHasInfinity ? kInfinity : static_cast<Bits>(kNanBits - 1);
  // The treatment of overflow.
  static constexpr Bits kOverflow =
      kSaturates && kHasInfinity ? static_cast<Bits>(kInfinity - 1) : kLargest;

  static constexpr double ToDouble(Bits bits) {
    const unsigned magnitude = bits & kMagnitudeMask;
    const uint64_t sign = bits & kSignBit ? uint64_t{1} << 63 : 0;
    if (magnitude > kLargest) return std::bit_cast<double>(sign | 0x7ff8000000000000u);
    if (kHasInfinity && magnitude == kInfinity)
      return std::bit_cast<double>(sign | 0x7ff0000000000000u);
    const unsigned exponent = magnitude >> kMantissa;
    if (exponent == 0) {
      // Below the normal range: magnitude times the smallest number.
      const double smallest = std::bit_cast<double>(uint64_t{1023 + 1 - kBias - kMantissa} << 52);
      const double value = magnitude * smallest;
      return sign ? -value : value;
    }
    const uint64_t wide =
        (uint64_t{magnitude} << (52 - kMantissa)) + (uint64_t{1023 - kBias} << 52);
    return std::bit_cast<double>(sign | wide);
  }
  static constexpr float ToFloat(Bits bits) { return static_cast<float>(ToDouble(bits)); }

  static constexpr Bits FromDouble(double value) {
    const uint64_t wide = std::bit_cast<uint64_t>(value);
    const Bits sign = wide >> 63 ? kSignBit : Bits{0};
    const uint64_t magnitude = wide & ~(uint64_t{1} << 63);
    if (magnitude > 0x7ff0000000000000u) return kNan;
    const int exponent = static_cast<int>(magnitude >> 52) - 1023;
    if (exponent > kBias + 1) return static_cast<Bits>(sign | kOverflow);
    // Drop the bits below the last bit of the format. The last bit moves up when the number is
    // below the normal range.
    const int below = exponent < 1 - kBias ? 1 - kBias - exponent : 0;
    const int shift = 52 - kMantissa + below;
    if (shift > 53) return sign;
    const uint64_t fraction = (magnitude & 0xfffffffffffffu) | (uint64_t{1} << 52);
    const uint64_t half = uint64_t{1} << (shift - 1);
    uint64_t rounded = (fraction + (half - 1) + ((fraction >> shift) & 1)) >> shift;
    // The hidden bit of a normal number adds 1 to the exponent field, hence exponent - 1.
    if (below == 0) rounded += static_cast<uint64_t>(exponent + kBias - 1) << kMantissa;
    if (rounded > kOverflow) rounded = kOverflow;
    return static_cast<Bits>(sign | rounded);
  }
};

using Float16 = FloatFormat<uint16_t, 5, 10, true, false, 0x7e00>;
using Bfloat16 = FloatFormat<uint16_t, 8, 7, true, false, 0x7fc0>;
using Float8e4m3 = FloatFormat<uint8_t, 4, 3, false, true, 0x7f>;
using Float8e5m2 = FloatFormat<uint8_t, 5, 2, true, true, 0x7f>;

}  // namespace tutti
