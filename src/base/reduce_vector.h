#pragma once

// A register of the target that the reduction kernels are being compiled for: loads and stores,
// whole and in part, and the arithmetic common to all element types. Included only by way of
// reduce_kernels.h, by the reduce_<target>.cc that defines TUTTI_REDUCE_NAMESPACE and
// TUTTI_REDUCE_LEVEL (512: AVX-512 F, BW, VL, DQ; 2: AVX2 and F16C; 0: the instructions of every
// machine of the architecture).
//
// Vec<T> is the compiler's own vector type: + - * / < ?: and the bit operators work lane by lane.

#include <cstddef>
#include <cstdint>

#include "base/reduce.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Included by itself, this header compiles for the baseline.
#ifndef TUTTI_REDUCE_NAMESPACE
#define TUTTI_REDUCE_NAMESPACE reduce_baseline
#define TUTTI_REDUCE_LEVEL 0
#endif

// Code between TUTTI_REDUCE_BEGIN and TUTTI_REDUCE_END is compiled for the target. Headers are
// included outside: otherwise the linker could hand their inline functions, in the target's
// instructions, to machines without these instructions. Vectors are passed only to functions that
// are always inlined, so the calling convention, of which -Wpsabi warns, does not matter.
#if TUTTI_REDUCE_LEVEL == 512
#define TUTTI_REDUCE_BEGIN                                                                  \
  _Pragma("GCC push_options") _Pragma("GCC target(\"avx512f,avx512bw,avx512vl,avx512dq\")") \
      _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wpsabi\"")
#elif TUTTI_REDUCE_LEVEL == 2
#define TUTTI_REDUCE_BEGIN                                                                        \
  _Pragma("GCC push_options") _Pragma("GCC target(\"avx2,f16c\")") _Pragma("GCC diagnostic push") \
      _Pragma("GCC diagnostic ignored \"-Wpsabi\"")
#else
#define TUTTI_REDUCE_BEGIN                                   \
  _Pragma("GCC push_options") _Pragma("GCC diagnostic push") \
      _Pragma("GCC diagnostic ignored \"-Wpsabi\"")
#endif
#define TUTTI_REDUCE_END _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")

#define TUTTI_INLINE [[gnu::always_inline]] inline

TUTTI_REDUCE_BEGIN
namespace tutti::TUTTI_REDUCE_NAMESPACE {

#if TUTTI_REDUCE_LEVEL == 512
inline constexpr size_t kVectorBytes = 64;
#elif TUTTI_REDUCE_LEVEL == 2
inline constexpr size_t kVectorBytes = 32;
#else
inline constexpr size_t kVectorBytes = 16;
#endif

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

// Orders streaming stores before the store that tells others of them.
TUTTI_INLINE void FinishPastCache() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Returns the first `bytes` < kVectorBytes bytes, the rest zero.
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

// Every NaN becomes the same NaN. The payload that survives an addition depends on the compiler's
// order of the operands, and must not be seen.
template <typename T>
TUTTI_INLINE Vec<T> OneNan(Vec<T> value) {
  using Bits = typename Ieee<T>::Signed;
  return (Vec<T>)(value != value ? Splat<Bits>(Ieee<T>::kNan) : (Vec<Bits>)value);
}

// Flips the magnitude bits of negative numbers: afterwards the integers are ordered as the floats
// are, -0 below +0. The function is its own inverse.
template <typename S>
TUTTI_INLINE Vec<S> OrderKey(Vec<S> bits) {
  constexpr int kShift = sizeof(S) * 8 - 1;
  const Vec<S> magnitude = Splat<S>(static_cast<S>((uint64_t{1} << kShift) - 1));
  if constexpr (sizeof(S) == 1) {
    // Byte shifts do not exist.
    return bits ^ ((Vec<S>)(bits < 0) & magnitude);
  } else {
    return bits ^ ((bits >> kShift) & magnitude);
  }
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
    // Each of these takes its second operand when the two are equal or either is NaN. The two
    // functions therefore agree except for NaN, and for zeros of both signs, where joining the bits
    // finds the right zero.
    const Vec<T> one = Extreme<kKind, T>(a, b);
    const Vec<T> other = Extreme<kKind, T>(b, a);
    using Bits = Vec<typename Ieee<T>::Signed>;
    const Bits joined =
        kKind == ReduceKind::kMax ? (Bits)one & (Bits)other : (Bits)one | (Bits)other;
    return (Vec<T>)(one == other ? joined : Splat(Ieee<T>::kNan));
  }
}

}  // namespace tutti::TUTTI_REDUCE_NAMESPACE
TUTTI_REDUCE_END
