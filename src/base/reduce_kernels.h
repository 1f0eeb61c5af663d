#pragma once

// The reduction kernels, written once over the compiler's vector types and compiled for one target
// per including file (see reduce_targets.h). The including file defines TUTTI_REDUCE_NAMESPACE and
// TUTTI_REDUCE_LEVEL.
//
// The order of things, from the inside out:
//   Vec<T>     one register
//   formats    how one register of stored elements becomes arithmetic values (Decode) and back
//   (Encode), and how
//              two values combine. Every lane is treated alike, so an element's result does not
//              depend on its place.
//   Run        the loop over positions; all sources of a position are read before it is written,
//   which makes it
//              safe for the destination to be one of the sources
//   Reduce     chooses the loop for a call: copy, two to four sources, or any number with scaling
//
// -ffp-contract=off is part of the contract: a multiply followed by an add must round twice on
// every target.

#include <cstddef>
#include <cstdint>

#include "base/copy.h"
#include "base/datatype.h"
#include "base/float_formats.h"
#include "base/reduce.h"
#include "base/reduce_targets.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Included by itself, this header compiles for the baseline.
#ifndef TUTTI_REDUCE_NAMESPACE
#define TUTTI_REDUCE_NAMESPACE reduce_baseline
#define TUTTI_REDUCE_LEVEL 0
#endif

// Everything from the standard library is included above: nothing outside this namespace may be
// compiled for the target, or the linker could hand its code to machines that lack the
// instructions.
#pragma GCC push_options
#if TUTTI_REDUCE_LEVEL == 512
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")
#elif TUTTI_REDUCE_LEVEL == 2
#pragma GCC target("avx2,f16c")
#endif
#pragma GCC diagnostic push
// Vectors are passed only to functions that are always inlined; the calling convention does not
// matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define TUTTI_INLINE [[gnu::always_inline]] inline

namespace tutti::TUTTI_REDUCE_NAMESPACE {

#if TUTTI_REDUCE_LEVEL == 512
inline constexpr size_t kVectorBytes = 64;
#elif TUTTI_REDUCE_LEVEL == 2
inline constexpr size_t kVectorBytes = 32;
#else
inline constexpr size_t kVectorBytes = 16;
#endif

// Elements are at most this large, and aligned to it arrays need no care for where they are cut.
inline constexpr size_t kLargestElement = 8;
inline constexpr size_t kMinBytesToAlign = 1024;

template <typename T>
struct VecOf {
  typedef T Type __attribute__((vector_size(kVectorBytes)));
};
template <typename T>
using Vec = typename VecOf<T>::Type;
using Raw = Vec<uint8_t>;
using U32 = Vec<uint32_t>;
using I32 = Vec<int32_t>;
using F32 = Vec<float>;

TUTTI_INLINE Raw Load(const uint8_t* from) {
  Raw raw;
  __builtin_memcpy(&raw, from, sizeof(raw));
  return raw;
}

TUTTI_INLINE void Store(Raw raw, uint8_t* to) { __builtin_memcpy(to, &raw, sizeof(raw)); }

// Past the caches. REQUIRES: `to` is aligned to a register.
TUTTI_INLINE void StorePastCache(Raw raw, uint8_t* to) {
#if TUTTI_REDUCE_LEVEL == 512
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)raw);
#elif TUTTI_REDUCE_LEVEL == 2
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)raw);
#elif defined(__x86_64__)
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)raw);
#else
  Store(raw, to);
#endif
}

// Orders streaming stores before whatever says that they are done.
TUTTI_INLINE void FinishPastCache() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// The first `bytes` < kVectorBytes bytes, the rest zero.
TUTTI_INLINE Raw LoadPart(const uint8_t* from, size_t bytes) {
#if TUTTI_REDUCE_LEVEL == 512
  return (Raw)_mm512_maskz_loadu_epi8((uint64_t{1} << bytes) - 1, from);
#else
  Raw raw = {};
  __builtin_memcpy(&raw, from, bytes);
  return raw;
#endif
}

TUTTI_INLINE void StorePart(Raw raw, uint8_t* to, size_t bytes) {
#if TUTTI_REDUCE_LEVEL == 512
  _mm512_mask_storeu_epi8(to, (uint64_t{1} << bytes) - 1, (__m512i)raw);
#else
  __builtin_memcpy(to, &raw, bytes);
#endif
}

template <typename T>
TUTTI_INLINE Vec<T> Splat(T value) {
  return value - Vec<T>{};
}

// ---------------------------------------------------------------------------------------------------------------
// Whole-register arithmetic.

// The integer with the bits of an IEEE float, and the float's constants.
template <typename T>
struct Ieee;
template <>
struct Ieee<float> {
  using Signed = int32_t;
  static constexpr Signed kNan = 0x7fc00000;
};
template <>
struct Ieee<double> {
  using Signed = int64_t;
  static constexpr Signed kNan = 0x7ff8000000000000;
};

// Every NaN becomes the same NaN: which operand's payload survives an addition depends on the order
// in which the compiler happened to put the operands, so it must not be seen.
template <typename T>
TUTTI_INLINE Vec<T> OneNan(Vec<T> value) {
  using Bits = typename Ieee<T>::Signed;
  return (Vec<T>)(value != value ? Splat<Bits>(Ieee<T>::kNan) : (Vec<Bits>)value);
}

// Flips the magnitude bits of negative numbers: afterwards the integers are ordered as the floats
// are, -0 below +0. It is its own inverse.
template <typename S>
TUTTI_INLINE Vec<S> OrderKey(Vec<S> bits) {
  constexpr int kShift = sizeof(S) * 8 - 1;
  constexpr S kMagnitude = static_cast<S>(~(uint64_t{1} << kShift));
  return bits ^ ((bits >> kShift) & Splat<S>(kMagnitude));
}

template <ReduceKind kKind, typename S>
TUTTI_INLINE Vec<S> Extreme(Vec<S> a, Vec<S> b) {
  if constexpr (kKind == ReduceKind::kMax) {
    return a > b ? a : b;
  } else {
    return a < b ? a : b;
  }
}

template <ReduceKind kKind, typename T>
TUTTI_INLINE Vec<T> CombineFloats(Vec<T> a, Vec<T> b) {
  if constexpr (kKind == ReduceKind::kSum) {
    return a + b;
  } else if constexpr (kKind == ReduceKind::kProd) {
    return a * b;
  } else {
    // Each of these takes its second operand when the two are equal or one is NaN. So the two agree
    // except for NaN, and for zeros of both signs, where joining the bits finds the right one.
    const Vec<T> one = Extreme<kKind, T>(a, b);
    const Vec<T> other = Extreme<kKind, T>(b, a);
    using Bits = Vec<typename Ieee<T>::Signed>;
    const Bits joined =
        kKind == ReduceKind::kMax ? (Bits)one & (Bits)other : (Bits)one | (Bits)other;
    return (Vec<T>)(one == other ? joined : Splat(Ieee<T>::kNan));
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Formats. Each has: Values (one register of elements, ready for arithmetic), Scalar, kSpread
// (registers that Values fills), Decode, Encode, Combine, Scale, Divide.

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
  TUTTI_INLINE static Values Scale(Values a, Scalar by) { return (Values)(a * Splat<T>(by)); }
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

// One register of narrow floats as kSpread registers of f32. Part p holds the elements whose bits
// lie at position p of each 32-bit lane (so no element crosses lanes), unless the format says
// otherwise.
template <int kParts>
struct WideValues {
  F32 part[kParts];
};

// What all narrow float formats share. Derived gives Widen and Narrow for the whole register.
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

// f32 from the pattern of a Number at the bottom of each lane (the bits above it must be zero).
template <typename Number>
TUTTI_INLINE F32 WidenLanes(U32 bits) {
  constexpr int kUp = 23 - Number::kMantissaBits;
  constexpr uint32_t kRebias = static_cast<uint32_t>(127 - Number::kBias) << 23;
  constexpr uint32_t kOneExponent = uint32_t{1} << 23;
  // Below the normal range the exponent field is zero but counts as one, and there is no hidden
  // bit: give the lane an exponent of one, hidden bit included, and subtract that bit's value
  // again. Exact, and no f32 subnormal appears.
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
  // The rounded pattern in the upper half of each lane, rubbish in the lower. Subnormals need no
  // special care: the exponents of the two formats are the same.
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
// Parts are the lower and the upper half of the register. The instructions round once and keep
// subnormals.
struct Float16Format : NarrowFormat<Float16Format, Float16, 2> {
#if TUTTI_REDUCE_LEVEL == 512
  // With all lanes in the mask these are the plain instructions.
  TUTTI_INLINE static F32 Widen(__m256i half) { return (F32)_mm512_maskz_cvtph_ps(0xffff, half); }
  TUTTI_INLINE static __m256i Narrow(F32 value) {
    return _mm512_maskz_cvtps_ph(0xffff, (__m512)OneNan<float>(value), _MM_FROUND_TO_NEAREST_INT);
  }
  TUTTI_INLINE static Values Decode(Raw raw) {
    const Vec<long long> all = (Vec<long long>)raw;
    return {
        { Widen((__m256i)__builtin_shufflevector(all, all, 0, 1, 2, 3)),
          Widen((__m256i)__builtin_shufflevector(all, all, 4, 5, 6, 7)) }};
  }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return (Raw)__builtin_shufflevector(Narrow(values.part[0]), Narrow(values.part[1]), 0, 1, 2, 3,
                                        4, 5, 6, 7);
  }
#else
  TUTTI_INLINE static F32 Widen(__m128i half) { return (F32)_mm256_cvtph_ps(half); }
  TUTTI_INLINE static __m128i Narrow(F32 value) {
    return _mm256_cvtps_ph((__m256)OneNan<float>(value), _MM_FROUND_TO_NEAREST_INT);
  }
  TUTTI_INLINE static Values Decode(Raw raw) {
    const Vec<long long> all = (Vec<long long>)raw;
    return {{Widen((__m128i)__builtin_shufflevector(all, all, 0, 1)),
             Widen((__m128i)__builtin_shufflevector(all, all, 2, 3))}};
  }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return (Raw)__builtin_shufflevector(Narrow(values.part[0]), Narrow(values.part[1]), 0, 1, 2, 3);
  }
#endif
};
#else
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
#endif

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

// min and max of narrow floats without widening: on order keys. NaN is remembered beside the key.
template <typename Number, typename S>
struct OrderedFormat {
  struct Values {
    Vec<S> key;
    Vec<S> is_nan;
  };
  using Scalar = S;
  static constexpr int kSpread = 2;
  static constexpr bool kDividesInLoop = false;

  TUTTI_INLINE static Values Decode(Raw raw) {
    const Vec<S> bits = (Vec<S>)raw;
    const Vec<S> magnitude = bits & Splat<S>(static_cast<S>(Number::kMagnitudeMask));
    return {OrderKey<S>(bits), (Vec<S>)(magnitude > Splat<S>(static_cast<S>(Number::kLargest)))};
  }
  template <bool kClean>
  TUTTI_INLINE static Raw Encode(Values values) {
    return (Raw)(values.is_nan ? Splat<S>(static_cast<S>(Number::kNan)) : OrderKey<S>(values.key));
  }
  template <ReduceKind kKind>
  TUTTI_INLINE static Values Combine(Values a, Values b) {
    return {Extreme<kKind, S>(a.key, b.key), a.is_nan | b.is_nan};
  }
};

// ---------------------------------------------------------------------------------------------------------------
// Loops.

// How many bytes to treat first so that stores then fall on whole cache lines: none where it would
// not pay, or where the boundary is inside an element.
TUTTI_INLINE size_t BytesToBoundary(const uint8_t* dst, size_t bytes) {
  if (bytes < kMinBytesToAlign) return 0;
  const size_t missing = -reinterpret_cast<uintptr_t>(dst) % kVectorBytes;
  return missing % kLargestElement == 0 ? missing : 0;
}

// One call. kCount is the number of sources where it is known at compile time, else 0; kAdjusts
// says whether to look at the scale mask and the divisor at all.
template <typename Format, ReduceKind kKind, int kCount, bool kAdjusts>
struct Loop {
  const void* const* sources;
  int count;
  typename Format::Scalar scalar;
  uint64_t scale_mask;
  uint64_t divisor;
  bool past_cache;

  // One register of source `s`. kPart: only its first `bytes` < kVectorBytes bytes exist.
  template <bool kPart>
  TUTTI_INLINE typename Format::Values Fetch(const uint8_t* source, int s, size_t offset,
                                             size_t bytes) const {
    typename Format::Values values =
        Format::Decode(kPart ? LoadPart(source + offset, bytes) : Load(source + offset));
    if constexpr (kAdjusts) {
      if ((scale_mask >> s) & 1) values = Format::Scale(values, scalar);
    }
    return values;
  }

  template <bool kPart>
  TUTTI_INLINE void Step(const uint8_t* const* from, uint8_t* dst, size_t offset,
                         size_t bytes) const {
    typename Format::Values values = Fetch<kPart>(from[0], 0, offset, bytes);
    if constexpr (kCount != 0) {
#pragma GCC unroll 4
      for (int s = 1; s < kCount; ++s) {
        values = Format::template Combine<kKind>(values, Fetch<kPart>(from[s], s, offset, bytes));
      }
    } else {
      for (int s = 1; s < count; ++s) {
        values = Format::template Combine<kKind>(values, Fetch<kPart>(from[s], s, offset, bytes));
      }
    }
    if constexpr (kAdjusts && Format::kDividesInLoop) {
      if (divisor != 0) values = Format::Divide(values, divisor);
    }
    // Untouched by scaling, what CombineFloats found to be the extreme is no stray NaN.
    constexpr bool kClean = !kAdjusts && (kKind == ReduceKind::kMax || kKind == ReduceKind::kMin);
    const Raw raw = Format::template Encode<kClean>(values);
    if constexpr (kPart) {
      StorePart(raw, dst + offset, bytes);
    } else if (past_cache) {
      StorePastCache(raw, dst + offset);
    } else {
      Store(raw, dst + offset);
    }
  }

  // Element bytes [first, last) of every array.
  TUTTI_INLINE void Run(uint8_t* dst, size_t first, size_t last) const {
    // A copy of the pointers that stores through `dst` cannot be suspected of changing.
    Loop self = *this;
    const uint8_t* from[kCount ? kCount : kMaxReduceSources];
    from[0] = static_cast<const uint8_t*>(sources[0]);
    for (int s = 1; s < (kCount ? kCount : count); ++s) {
      from[s] = static_cast<const uint8_t*>(sources[s]);
    }
    size_t offset = first;
    size_t part = BytesToBoundary(dst + first, last - first);
    self.past_cache =
        past_cache && reinterpret_cast<uintptr_t>(dst + first + part) % kVectorBytes == 0;
    for (;;) {
      if (part != 0) self.template Step<true>(from, dst, offset, part);
      offset += part;
      for (; offset + kVectorBytes <= last; offset += kVectorBytes) {
        self.template Step<false>(from, dst, offset, 0);
      }
      part = last - offset;
      if (part == 0) break;
    }
    if (self.past_cache) FinishPastCache();
  }
};

template <typename T>
void DivideIntegers(uint8_t* array, size_t bytes, uint64_t divisor) {
  for (size_t offset = 0; offset < bytes; offset += sizeof(T)) {
    T value;
    __builtin_memcpy(&value, array + offset, sizeof(T));
    const bool negative = value < 0;
    const uint64_t magnitude =
        negative ? -static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    const uint64_t quotient = magnitude / divisor;
    value = static_cast<T>(negative ? -quotient : quotient);
    __builtin_memcpy(array + offset, &value, sizeof(T));
  }
}

// Integers are reduced and divided block by block, so that the division finds the block in the L1
// cache.
inline constexpr size_t kDivideBlock = 4096;

template <typename Format, ReduceKind kKind, int kCount>
[[gnu::noinline]] void RunPlain(uint8_t* dst, const void* const* sources, int count, size_t bytes,
                                bool past_cache) {
  Loop<Format, kKind, kCount, false>{sources, count, {}, 0, 0, past_cache}.Run(dst, 0, bytes);
}

template <typename T, typename Format, ReduceKind kKind>
[[gnu::noinline]] void RunAdjusted(uint8_t* dst, const void* const* sources, int count,
                                   size_t bytes, bool past_cache, const ReduceArgs& args) {
  const bool divides_after = !Format::kDividesInLoop && args.divisor != 0;
  const Loop<Format, kKind, 0, true> loop{
      sources,         count,        Format::ReadScalar(args.scalar),
      args.scale_mask, args.divisor, past_cache && !divides_after};
  if (!divides_after) return loop.Run(dst, 0, bytes);
  if constexpr (!Format::kDividesInLoop) {
    for (size_t first = 0; first < bytes; first += kDivideBlock) {
      const size_t last = bytes - first < kDivideBlock ? bytes : first + kDivideBlock;
      loop.Run(dst, first, last);
      DivideIntegers<T>(dst + first, last - first, args.divisor);
    }
  }
}

// Whether to write past the caches. Not in place: there the line has just been read anyway.
inline bool GoesPastCache(const void* dst, const void* const* sources, int count, size_t bytes,
                          const ReduceArgs& args) {
  if (bytes < kPastCacheBytes && !args.past_cache) return false;
  for (int s = 0; s < count; ++s) {
    if (sources[s] == dst) return false;
  }
  return true;
}

// A ReduceFn. T is the element as the caller knows it, Plain and Adjusted the formats of the loops
// without and with scaling or division.
template <typename T, typename Plain, typename Adjusted, ReduceKind kKind>
void Reduce(void* dst, const void* const* sources, int count, size_t elements,
            const ReduceArgs& args) {
  uint8_t* const to = static_cast<uint8_t*>(dst);
  const size_t bytes = elements * sizeof(T);
  const bool past_cache = GoesPastCache(dst, sources, count, bytes, args);
  const uint64_t scaled = args.scale_mask & (~uint64_t{0} >> (kMaxReduceSources - count));
  if (scaled != 0 || args.divisor != 0) {
    return RunAdjusted<T, Adjusted, kKind>(to, sources, count, bytes, past_cache, args);
  }
  switch (count) {
    case 1:
      return past_cache ? CopyBytesPastCache(dst, sources[0], bytes)
                        : CopyBytes(dst, sources[0], bytes);
    case 2:
      return RunPlain<Plain, kKind, 2>(to, sources, count, bytes, past_cache);
    case 3:
      return RunPlain<Plain, kKind, 3>(to, sources, count, bytes, past_cache);
    case 4:
      return RunPlain<Plain, kKind, 4>(to, sources, count, bytes, past_cache);
    default:
      return RunPlain<Plain, kKind, 0>(to, sources, count, bytes, past_cache);
  }
}

template <typename T, typename Plain, typename PlainOrder, typename Adjusted,
          typename AdjustedOrder>
constexpr ReduceFn Choose(ReduceKind kind) {
  switch (kind) {
    case ReduceKind::kSum:
      return Reduce<T, Plain, Adjusted, ReduceKind::kSum>;
    case ReduceKind::kProd:
      return Reduce<T, Plain, Adjusted, ReduceKind::kProd>;
    case ReduceKind::kMax:
      return Reduce<T, PlainOrder, AdjustedOrder, ReduceKind::kMax>;
    case ReduceKind::kMin:
      return Reduce<T, PlainOrder, AdjustedOrder, ReduceKind::kMin>;
  }
  return nullptr;
}

// Sums and products wrap, so they are the same for signed and unsigned and share the unsigned loop
// (in which overflow is defined); order is not the same.
template <typename T, typename Unsigned>
constexpr ReduceFn ChooseInteger(ReduceKind kind) {
  return Choose<T, IntegerFormat<Unsigned>, IntegerFormat<T>, IntegerFormat<Unsigned>,
                IntegerFormat<T>>(kind);
}

template <typename Number, typename Format, typename Key>
constexpr ReduceFn ChooseNarrow(ReduceKind kind) {
  return Choose<typename Number::Bits, Format, OrderedFormat<Number, Key>, Format, Format>(kind);
}

ReduceFn Find(DataType type, ReduceKind kind) {
  switch (type) {
    case DataType::kInt8:
      return ChooseInteger<int8_t, uint8_t>(kind);
    case DataType::kUint8:
      return ChooseInteger<uint8_t, uint8_t>(kind);
    case DataType::kInt32:
      return ChooseInteger<int32_t, uint32_t>(kind);
    case DataType::kUint32:
      return ChooseInteger<uint32_t, uint32_t>(kind);
    case DataType::kInt64:
      return ChooseInteger<int64_t, uint64_t>(kind);
    case DataType::kUint64:
      return ChooseInteger<uint64_t, uint64_t>(kind);
    case DataType::kFloat16:
      return ChooseNarrow<Float16, Float16Format, int16_t>(kind);
    case DataType::kFloat32:
      return Choose<float, IeeeFormat<float>, IeeeFormat<float>, IeeeFormat<float>,
                    IeeeFormat<float>>(kind);
    case DataType::kFloat64:
      return Choose<double, IeeeFormat<double>, IeeeFormat<double>, IeeeFormat<double>,
                    IeeeFormat<double>>(kind);
    case DataType::kBfloat16:
      return ChooseNarrow<Bfloat16, Bfloat16Format, int16_t>(kind);
    case DataType::kFloat8e4m3:
      return ChooseNarrow<Float8e4m3, Float8Format<Float8e4m3>, int8_t>(kind);
    case DataType::kFloat8e5m2:
      return ChooseNarrow<Float8e5m2, Float8Format<Float8e5m2>, int8_t>(kind);
  }
  return nullptr;
}

}  // namespace tutti::TUTTI_REDUCE_NAMESPACE

#undef TUTTI_INLINE
#pragma GCC diagnostic pop
#pragma GCC pop_options
