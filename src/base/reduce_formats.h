#pragma once

// Turns a register of stored elements into values for arithmetic, and back. A format has
//
//   Values               the elements of a register, ready for arithmetic
//   Scalar, ReadScalar   a value to scale by
//   Decode, Encode       between the register and Values (kClean: the only NaN is the type's own)
//   Combine<kind>        two Values into a single Values
//   Scale, Divide        Values by a Scalar, by a number of ranks (unless kDividesInLoop is false)
//   kSpread              how many registers Values fills
//
// Every lane is treated alike, so an element's result does not depend on its place. See
// reduce_vector.h for the files that may include this header.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/float_formats.h"
#include "base/reduce.h"
#include "base/reduce_vector.h"

TUTTI_REDUCE_BEGIN
namespace tutti::TUTTI_REDUCE_NAMESPACE {

template <typename T>
struct IntegerFormat {
  using Values = Vec<T>;
  using Scalar = T;
  static constexpr int kSpread = 1;
  static constexpr bool kDividesInLoop = false;

  TUTTI_INLINE static Values Decode(Raw raw) { return (Values)raw; }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return (Raw)values;
  }
  template <ReduceKind kKind>
  TUTTI_INLINE static Values Combine(Values a, Values b) {
    if constexpr (kKind == ReduceKind::kSum) {
      return a + b;
    } else if constexpr (kKind == ReduceKind::kProd) {
      return a * b;
    } else {
      return Extreme<kKind, T>(a, b);
    }
  }
  TUTTI_INLINE static Scalar ReadScalar(uint64_t bits) { return static_cast<Scalar>(bits); }
  // Unsigned arithmetic wraps.
  TUTTI_INLINE static Values Scale(Values a, Scalar by) {
    using U = std::make_unsigned_t<T>;
    return (Values)((Vec<U>)a * Splat<U>(static_cast<U>(by)));
  }
};

template <typename T>
struct IeeeFormat {
  using Values = Vec<T>;
  using Scalar = T;
  static constexpr int kSpread = 1;
  static constexpr bool kDividesInLoop = true;

  TUTTI_INLINE static Values Decode(Raw raw) { return (Values)raw; }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return kClean ? (Raw)values : (Raw)OneNan<T>(values);
  }
  template <ReduceKind kKind>
  TUTTI_INLINE static Values Combine(Values a, Values b) {
    return CombineFloats<kKind, T>(a, b);
  }
  TUTTI_INLINE static Scalar ReadScalar(uint64_t bits) {
    Scalar scalar;
    __builtin_memcpy(&scalar, &bits, sizeof(scalar));
    return scalar;
  }
  TUTTI_INLINE static Values Scale(Values a, Scalar by) { return a * Splat<T>(by); }
  TUTTI_INLINE static Values Divide(Values a, uint64_t by) {
    return a / Splat<T>(static_cast<T>(by));
  }
};

// A register of narrow floats as kSpread registers of f32. Part p holds the elements whose bits lie
// at position p of each 32-bit lane (no element crosses lanes), unless the format says otherwise.
template <int kParts>
struct WideValues {
  F32 part[kParts];
};

// All narrow float formats share this. Derived gives Widen and Narrow for the whole register.
template <typename Derived, typename Number, int kParts>
struct NarrowFormat {
  using Values = WideValues<kParts>;
  using Scalar = float;
  static constexpr int kSpread = kParts;
  static constexpr bool kDividesInLoop = true;

  template <ReduceKind kKind>
  TUTTI_INLINE static Values Combine(Values a, Values b) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      a.part[p] = CombineFloats<kKind, float>(a.part[p], b.part[p]);
    }
    return a;
  }
  TUTTI_INLINE static Scalar ReadScalar(uint64_t bits) {
    return Number::ToFloat(static_cast<typename Number::Bits>(bits));
  }
  TUTTI_INLINE static Values Scale(Values a, Scalar by) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) a.part[p] *= Splat<float>(by);
    return a;
  }
  TUTTI_INLINE static Values Divide(Values a, uint64_t by) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) a.part[p] /= Splat<float>(static_cast<float>(by));
    return a;
  }
};

// f32 from the pattern of a Number at the bottom of each lane (the higher bits must be zero).
template <typename Number>
TUTTI_INLINE F32 WidenLanes(U32 bits) {
  constexpr int kUp = 23 - Number::kMantissaBits;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - Number::kBias) << 23;
  constexpr uint32_t kOneExponent = uint32_t{1} << 23;
  // Below the normal range the exponent field is zero but counts as 1, and the hidden bit is
  // missing: give the lane an exponent of 1, hidden bit included, and subtract the value of the
  // hidden bit again. Exact, and no f32 subnormal appears.
  constexpr uint32_t kHiddenBit = kRebias + kOneExponent;

  const U32 sign = (bits & Number::kSignBit)
                   << (31 - Number::kMantissaBits - Number::kExponentBits);
  const U32 magnitude = bits & Number::kMagnitudeMask;
  // Signed compares throughout: magnitudes have no top bit, and not every target can compare
  // unsigned.
  const I32 subnormal = (I32)magnitude < (1 << Number::kMantissaBits);
  U32 wide = (magnitude << kUp) + kRebias;
  wide = subnormal ? wide + kOneExponent : wide;
  const F32 hidden = (F32)((U32)subnormal & kHiddenBit);
  wide = (U32)((F32)wide - hidden);
  if constexpr (Number::kHasInfinity) {
    wide = (I32)magnitude >= int32_t{Number::kInfinity} ? wide + kRebias : wide;
  } else {
    wide = (I32)magnitude > int32_t{Number::kLargest} ? Splat<uint32_t>(0x7fc00000) : wide;
  }
  return (F32)(wide | sign);
}

// The pattern of the Number nearest to each f32, at the bottom of its lane.
template <typename Number>
TUTTI_INLINE U32 NarrowLanes(F32 value) {
  constexpr int kDown = 23 - Number::kMantissaBits;
  constexpr int kSignDown = 31 - Number::kMantissaBits - Number::kExponentBits;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - Number::kBias) << 23;
  constexpr uint32_t kSmallestNormal = kRebias + (uint32_t{1} << 23);
  // Adding this power of two leaves the nearest multiple of the format's smallest number in the low
  // bits.
  constexpr uint32_t kMagic =
      static_cast<uint32_t>(127 + 24 - Number::kBias - Number::kMantissaBits) << 23;

  const U32 bits = (U32)value;
  const U32 sign = bits & 0x80000000u;
  const U32 magnitude = bits ^ sign;
  const U32 odd = (magnitude >> kDown) & 1u;
  const U32 normal = (magnitude + odd + ((uint32_t{1} << (kDown - 1)) - 1 - kRebias)) >> kDown;
  const U32 subnormal = (U32)((F32)magnitude + (F32)Splat<uint32_t>(kMagic)) - kMagic;
  U32 narrow = (I32)magnitude < (I32)Splat<uint32_t>(kSmallestNormal) ? subnormal : normal;
  narrow = (I32)narrow > (I32)Splat<uint32_t>(Number::kOverflow)
               ? Splat<uint32_t>(Number::kOverflow)
               : narrow;
  narrow |= sign >> kSignDown;
  return (I32)magnitude > (I32)Splat<uint32_t>(0x7f800000) ? Splat<uint32_t>(Number::kNan) : narrow;
}

struct Bfloat16Format : NarrowFormat<Bfloat16Format, Bfloat16, 2> {
  TUTTI_INLINE static Values Decode(Raw raw) {
    const U32 pairs = (U32)raw;
    return {{(F32)(pairs << 16), (F32)(pairs & 0xffff0000u)}};
  }
  // Returns the rounded pattern in the upper half of each lane, rubbish in the lower. Subnormals
  // need no special care: the exponents of the two formats are the same.
  TUTTI_INLINE static U32 RoundUpperHalf(F32 value) {
    const U32 bits = (U32)value;
    const U32 rounded = bits + ((bits >> 16) & 1u) + 0x7fffu;
    return value != value ? Splat<uint32_t>(uint32_t{Bfloat16::kNan} << 16) : rounded;
  }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return (Raw)((RoundUpperHalf(values.part[0]) >> 16) |
                 (RoundUpperHalf(values.part[1]) & 0xffff0000u));
  }
};

#if TUTTI_REDUCE_LEVEL >= 2

// f16 by the conversion instructions, which round once and keep subnormals. The parts are the lower
// and the upper half of the register.
#if TUTTI_REDUCE_LEVEL == 512
using HalfRegister = __m256i;
// With all lanes in the mask these are the plain instructions.
TUTTI_INLINE F32 WidenHalf(HalfRegister half) { return (F32)_mm512_maskz_cvtph_ps(0xffff, half); }
template <int kRounding>
TUTTI_INLINE HalfRegister NarrowHalf(F32 value) {
  return _mm512_maskz_cvtps_ph(0xffff, (__m512)value, kRounding);
}
#else
using HalfRegister = __m128i;
TUTTI_INLINE F32 WidenHalf(HalfRegister half) { return (F32)_mm256_cvtph_ps(half); }
template <int kRounding>
TUTTI_INLINE HalfRegister NarrowHalf(F32 value) {
  return _mm256_cvtps_ph((__m256)value, kRounding);
}
#endif

// Shuffles, because a copy through memory would wait for its own store.
TUTTI_INLINE WideValues<2> WidenFloat16(Raw raw) {
  const Vec<long long> all = (Vec<long long>)raw;
#if TUTTI_REDUCE_LEVEL == 512
  return {{WidenHalf((HalfRegister)__builtin_shufflevector(all, all, 0, 1, 2, 3)),
           WidenHalf((HalfRegister)__builtin_shufflevector(all, all, 4, 5, 6, 7))}};
#else
  return {{WidenHalf((HalfRegister)__builtin_shufflevector(all, all, 0, 1)),
           WidenHalf((HalfRegister)__builtin_shufflevector(all, all, 2, 3))}};
#endif
}

template <int kRounding>
TUTTI_INLINE Raw NarrowFloat16(F32 low, F32 high) {
  const HalfRegister a = NarrowHalf<kRounding>(low);
  const HalfRegister b = NarrowHalf<kRounding>(high);
#if TUTTI_REDUCE_LEVEL == 512
  return (Raw)__builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
#else
  return (Raw)__builtin_shufflevector(a, b, 0, 1, 2, 3);
#endif
}

struct Float16Format : NarrowFormat<Float16Format, Float16, 2> {
  TUTTI_INLINE static Values Decode(Raw raw) { return WidenFloat16(raw); }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return NarrowFloat16<_MM_FROUND_TO_NEAREST_INT>(OneNan<float>(values.part[0]),
                                                    OneNan<float>(values.part[1]));
  }
};

// fp8 by way of f16, which has e5m2's exponents and, up to a factor of 256, e4m3's. The first two
// parts are the even bytes of the register, the others the odd bytes.
template <typename Number>
struct Float8Format : NarrowFormat<Float8Format<Number>, Number, 4> {
  using Values = WideValues<4>;
  using U16 = Vec<uint16_t>;
  using I16 = Vec<int16_t>;
  // How far the pattern, sign apart, lies from the top of the f16 pattern with the same digits.
  static constexpr int kDrop = 10 - Number::kMantissaBits;
  static constexpr bool kRescales = Number::kBias != Float16::kBias;
  static constexpr float kFactor = kRescales ? 256.0f : 1.0f;
  static_assert(kRescales ? Number::kBias + 8 == Float16::kBias : kDrop == 8);

  TUTTI_INLINE static Values Decode(Raw raw) {
    const U16 pairs = (U16)raw;
    const WideValues<2> even = WidenBytes(pairs << 8);
    const WideValues<2> odd = WidenBytes(pairs & uint16_t{0xff00});
    return {{even.part[0], even.part[1], odd.part[0], odd.part[1]}};
  }

  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    const U16 even = NarrowToUpperBytes(values.part[0], values.part[1]);
    const U16 odd = NarrowToUpperBytes(values.part[2], values.part[3]);
    return (Raw)((even >> 8) | odd);
  }

 private:
  // Each lane has a pattern in its upper byte and zero in the lower.
  TUTTI_INLINE static WideValues<2> WidenBytes(U16 bytes) {
    if constexpr (!kRescales) {
      return WidenFloat16((Raw)bytes);
    } else {
      // The shift leaves two copies of the sign; the lower is the top bit of f16's exponent.
      U16 half = (U16)((I16)bytes >> 1) & uint16_t{0xbfff};
      const I16 magnitude = (I16)(half & uint16_t{0x7fff});
      half = magnitude == int16_t{Number::kNan << kDrop} ? Splat<uint16_t>(Float16::kNan) : half;
      WideValues<2> wide = WidenFloat16((Raw)half);
      wide.part[0] *= Splat<float>(kFactor);
      wide.part[1] *= Splat<float>(kFactor);
      return wide;
    }
  }

  // Replaces the low bits of `value` by a single bit, two places below the last digit of Number.
  // The bit is set unless all replaced bits are zero, which is all that rounding must know of the
  // low bits. f16 holds the result exactly, down to half of Number's smallest number, and so the
  // number is rounded once. Values below half of Number's smallest number become zero in any case.
  TUTTI_INLINE static F32 JamLowBits(F32 value) {
    constexpr uint32_t kLow = (uint32_t{1} << (23 - Number::kMantissaBits - 2)) - 1;
    const U32 bits = (U32)value;
    return (F32)((bits | ((bits & kLow) + kLow)) & ~kLow);
  }

  // Returns the nearest patterns in the upper bytes of the lanes, zero in the lower.
  TUTTI_INLINE static U16 NarrowToUpperBytes(F32 low, F32 high) {
    if constexpr (kRescales) {
      low *= Splat<float>(1 / kFactor);
      high *= Splat<float>(1 / kFactor);
    }
    const U16 half = (U16)NarrowFloat16<_MM_FROUND_TO_ZERO>(JamLowBits(low), JamLowBits(high));
    const U16 magnitude = half & uint16_t{0x7fff};
    const U16 odd = (magnitude >> kDrop) & uint16_t{1};
    const U16 rounded = magnitude + odd + uint16_t{(1 << (kDrop - 1)) - 1};
    constexpr int16_t kLimit = Number::kOverflow << kDrop;
    const U16 narrow =
        (U16)Extreme<ReduceKind::kMin, int16_t>((I16)rounded, Splat<int16_t>(kLimit));
    const U16 upper = ((narrow << (8 - kDrop)) & uint16_t{0x7f00}) | (half & uint16_t{0x8000});
    return (I16)magnitude > int16_t{Float16::kInfinity} ? Splat<uint16_t>(Number::kNan << 8)
                                                        : upper;
  }
};

#else

// Without conversion instructions, element by element in 32-bit lanes.
struct Float16Format : NarrowFormat<Float16Format, Float16, 2> {
  TUTTI_INLINE static Values Decode(Raw raw) {
    const U32 pairs = (U32)raw;
    return {{WidenLanes<Float16>(pairs & 0xffffu), WidenLanes<Float16>(pairs >> 16)}};
  }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return (Raw)(NarrowLanes<Float16>(values.part[0]) |
                 (NarrowLanes<Float16>(values.part[1]) << 16));
  }
};

template <typename Number>
struct Float8Format : NarrowFormat<Float8Format<Number>, Number, 4> {
  using Values = WideValues<4>;
  TUTTI_INLINE static Values Decode(Raw raw) {
    const U32 quads = (U32)raw;
    return {{WidenLanes<Number>(quads & 0xffu), WidenLanes<Number>((quads >> 8) & 0xffu),
             WidenLanes<Number>((quads >> 16) & 0xffu), WidenLanes<Number>(quads >> 24)}};
  }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return (Raw)(NarrowLanes<Number>(values.part[0]) | (NarrowLanes<Number>(values.part[1]) << 8) |
                 (NarrowLanes<Number>(values.part[2]) << 16) |
                 (NarrowLanes<Number>(values.part[3]) << 24));
  }
};

#endif

// min and max of narrow floats without widening: on integers in the order of the floats, moved
// round so that NaN of either sign comes last in the winning direction.
//
//   order keys        -NaN  -inf … -0 +0 … +inf  +NaN
//   moved for max           -inf … -0 +0 … +inf  +NaN -NaN
//   moved for min     +NaN -NaN  -inf … -0 +0 … +inf
template <typename Number, typename S, ReduceKind kOrder>
struct OrderedFormat {
  using Values = Vec<S>;
  using Unsigned = Vec<typename Number::Bits>;
  using Bits = typename Number::Bits;
  using Scalar = S;
  static constexpr int kSpread = 2;
  static constexpr bool kDividesInLoop = false;

  static constexpr int kLast = Number::kLargest;
  static constexpr int kLowest = -(1 << (8 * static_cast<int>(sizeof(S)) - 1));
  static constexpr int kMoveUp =
      kOrder == ReduceKind::kMax ? kLowest + 1 + kLast : -1 - kLowest - kLast;
  // The last number before the NaNs, moved.
  static constexpr int kEdge = kOrder == ReduceKind::kMax ? kLast + kMoveUp : -1 - kLast + kMoveUp;

  TUTTI_INLINE static Values Decode(Raw raw) {
    return (Values)((Unsigned)OrderKey<S>((Vec<S>)raw) + static_cast<Bits>(kMoveUp));
  }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    const Vec<S> bits = OrderKey<S>((Vec<S>)((Unsigned)values - static_cast<Bits>(kMoveUp)));
    const Vec<S> edge = Splat<S>(static_cast<S>(kEdge));
    const Vec<S> nan = Splat<S>(static_cast<S>(Number::kNan));
    if constexpr (kOrder == ReduceKind::kMax) {
      return (Raw)(values > edge ? nan : bits);
    } else {
      return (Raw)(values < edge ? nan : bits);
    }
  }
  template <ReduceKind kKind>
  TUTTI_INLINE static Values Combine(Values a, Values b) {
    return Extreme<kKind, S>(a, b);
  }
};

}  // namespace tutti::TUTTI_REDUCE_NAMESPACE
TUTTI_REDUCE_END
