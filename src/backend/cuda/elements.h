#pragma once

// The twelve element types in kernels: how a few bytes in registers are read as elements, combined,
// scaled and written. The rules are those of base/reduce.h:
// - Narrow floats are combined in f32 over all sources of a rank, and then rounded (once in a mesh,
//   at each rank of a ring).
// - Integers wrap.
// - Minimum and maximum keep NaN, take +0 for the larger zero and leave the chosen element
//   unchanged.
// - A NaN result has one pattern per type.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/target.h"
#include "base/datatype.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#else
#include "base/float_formats.h"
#endif

namespace tutti::cuda {

// Stored forms of the narrow floats.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

// Describes how to compute with a stored element.
template <class T>
struct Element {
  using Wide = T;
  TUTTI_HD static T Widen(T value) { return value; }
  TUTTI_HD static T Narrow(T value) { return value; }
};

#ifdef __CUDACC__
#define TUTTI_NARROW(T, widen, narrow)                         \
  template <>                                                  \
  struct Element<T> {                                          \
    using Wide = float;                                        \
    TUTTI_HD static float Widen(T value) { return widen; }     \
    TUTTI_HD static T Narrow(float value) { return {narrow}; } \
  };
TUTTI_NARROW(Half, __half2float(__half(__half_raw{value.bits})),
             __half_raw(__float2half_rn(value)).x)
TUTTI_NARROW(Bfloat, __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{value.bits})),
             __nv_bfloat16_raw(__float2bfloat16_rn(value)).x)
TUTTI_NARROW(E4m3, __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, __NV_E4M3))),
             __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3))
TUTTI_NARROW(E5m2, __half2float(__half(__nv_cvt_fp8_to_halfraw(value.bits, __NV_E5M2))),
             __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2))
#else
#define TUTTI_NARROW(T, Format)                                                  \
  template <>                                                                    \
  struct Element<T> {                                                            \
    using Wide = float;                                                          \
    static float Widen(T value) { return Format::ToFloat(value.bits); }          \
    static T Narrow(float value) { return {Format::FromDouble(double{value})}; } \
  };
TUTTI_NARROW(Half, Float16)
TUTTI_NARROW(Bfloat, Bfloat16)
TUTTI_NARROW(E4m3, Float8e4m3)
TUTTI_NARROW(E5m2, Float8e5m2)
#endif
#undef TUTTI_NARROW

template <class W>
inline constexpr bool kIsFloating = W(0.5) != W(0);

// Narrows an element that was chosen among others. Narrowing saturates, but an infinite e5m2 stays
// infinite.
template <class T>
TUTTI_HD T NarrowChosen(typename Element<T>::Wide value) {
  return Element<T>::Narrow(value);
}
template <>
TUTTI_HD E5m2 NarrowChosen<E5m2>(float value) {
  constexpr uint8_t kInfinity = 0x7c, kNegative = 0x80;
  constexpr float kLargest = 57344;
  if (value > kLargest) return {kInfinity};
  if (value < -kLargest) return {kInfinity | kNegative};
  return Element<E5m2>::Narrow(value);
}

// The pattern of every NaN result, as on hosts (base/reduce.h).
template <class T>
inline constexpr uint64_t kNanBits = 0;
template <>
inline constexpr uint64_t kNanBits<float> = 0x7fc00000;
template <>
inline constexpr uint64_t kNanBits<double> = 0x7ff8000000000000;
template <>
inline constexpr uint64_t kNanBits<Half> = 0x7e00;
template <>
inline constexpr uint64_t kNanBits<Bfloat> = 0x7fc0;
template <>
inline constexpr uint64_t kNanBits<E4m3> = 0x7f;
template <>
inline constexpr uint64_t kNanBits<E5m2> = 0x7f;

// Returns the element, or the single NaN pattern if the element's wide value is NaN.
template <class T>
TUTTI_HD T WithOneNan(T element, typename Element<T>::Wide value) {
  if constexpr (kNanBits<T> != 0) {
    const uint64_t bits = kNanBits<T>;
    T nan;
    __builtin_memcpy(&nan, &bits, sizeof(T));
    return value != value ? nan : element;
  }
  return element;
}

// Describes a reduction, by value in a kernel's arguments.
struct ReduceArgs {
  ReduceKind kind = ReduceKind::kSum;
  bool scale = false;                 // multiply this rank's input by `scalar`
  uint64_t scalar = 0;                // one element in the first bytes
  const void* live_scalar = nullptr;  // read when the operation runs; null: use `scalar`
  uint32_t divisor = 0;               // divide the result; 0: do not
};

// With two zeroes, which compare equal, a + b is +0 unless both are negative.
template <class W>
TUTTI_HD W Larger(W a, W b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(W) == 4 && kIsFloating<W>) {
    W larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
  }
#endif
  if constexpr (kIsFloating<W>) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == 0 && b == 0) return a + b;
  }
  return a < b ? b : a;
}
template <class W>
TUTTI_HD W Smaller(W a, W b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(W) == 4 && kIsFloating<W>) {
    W smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
  }
#endif
  if constexpr (kIsFloating<W>) {
    if (a != a) return a;
    if (b != b) return b;
    if (a == 0 && b == 0) return -(-a + -b);
  }
  return b < a ? b : a;
}

// Integers wrap, also where C++ would call the overflow undefined.
template <class W>
TUTTI_HD W Add(W a, W b) {
  if constexpr (kIsFloating<W>)
    return a + b;
  else
    return static_cast<W>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
template <class W>
TUTTI_HD W Multiply(W a, W b) {
  if constexpr (kIsFloating<W>)
    return a * b;
  else
    return static_cast<W>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// kBytes of elements, in registers: a line (16), or the data of a flagged line (8).
template <class T, int kBytes>
struct Pack {
  static constexpr int kElems = kBytes / static_cast<int>(sizeof(T));
  using Wide = typename Element<T>::Wide;
  struct Raw {
    alignas(kBytes) T e[kElems];
  };
  Wide v[kElems] = {};

  TUTTI_HD static Pack From(const uint32_t* words) {
    Raw raw;
    __builtin_memcpy(&raw, words, kBytes);
    Pack pack;
    TUTTI_UNROLL
    for (int i = 0; i < kElems; ++i) pack.v[i] = Element<T>::Widen(raw.e[i]);
    return pack;
  }
  // Stores a value computed by `kind`; kFinal: as the result of the operation.
  template <bool kFinal = false>
  TUTTI_HD void To(uint32_t* words, ReduceKind kind = ReduceKind::kSum) const {
    const bool chosen = kind == ReduceKind::kMax || kind == ReduceKind::kMin;
    Raw raw;
    TUTTI_UNROLL
    for (int i = 0; i < kElems; ++i) {
      raw.e[i] = chosen ? NarrowChosen<T>(v[i]) : Element<T>::Narrow(v[i]);
      if constexpr (kFinal) raw.e[i] = WithOneNan<T>(raw.e[i], v[i]);
    }
    __builtin_memcpy(words, &raw, kBytes);
  }
  TUTTI_HD void Combine(ReduceKind kind, const Pack& other) {
    switch (kind) {
      case ReduceKind::kSum:
        TUTTI_UNROLL
        for (int i = 0; i < kElems; ++i) v[i] = Add(v[i], other.v[i]);
        return;
      case ReduceKind::kProd:
        TUTTI_UNROLL
        for (int i = 0; i < kElems; ++i) v[i] = Multiply(v[i], other.v[i]);
        return;
      case ReduceKind::kMax:
        TUTTI_UNROLL
        for (int i = 0; i < kElems; ++i) v[i] = Larger(v[i], other.v[i]);
        return;
      case ReduceKind::kMin:
        TUTTI_UNROLL
        for (int i = 0; i < kElems; ++i) v[i] = Smaller(v[i], other.v[i]);
        return;
    }
  }
};

// Returns the stored quotient. The function is out of line, since it is long and averages are rare.
// `sum` is passed by value, since an address would keep the variable in memory on every path.
template <class T, int kBytes>
TUTTI_OUTLINE Line DividedBy(Pack<T, kBytes> sum, uint32_t divisor) {
  using Wide = typename Pack<T, kBytes>::Wide;
  Pack<T, kBytes> quotient;
  TUTTI_UNROLL
  for (int i = 0; i < Pack<T, kBytes>::kElems; ++i) {
    if constexpr (!kIsFloating<Wide> && sizeof(Wide) < 4) {
      quotient.v[i] =
          static_cast<Wide>(static_cast<int32_t>(sum.v[i]) / static_cast<int32_t>(divisor));
    } else if constexpr (Wide(-1) < Wide(0)) {  // floating, or with a sign
      quotient.v[i] = sum.v[i] / static_cast<Wide>(divisor);
    } else {
      quotient.v[i] = sum.v[i] / divisor;
    }
  }
  Line line = {};
  quotient.template To<true>(line.w);
  return line;
}

// Returns line × scalar, rounded to the type.
template <class T, int kBytes>
TUTTI_OUTLINE Line ScaleLine(Line line, uint64_t scalar) {
  T one;
  __builtin_memcpy(&one, &scalar, sizeof(T));
  const auto factor = Element<T>::Widen(one);
  auto pack = Pack<T, kBytes>::From(line.w);
  TUTTI_UNROLL
  for (int i = 0; i < Pack<T, kBytes>::kElems; ++i) pack.v[i] = Multiply(pack.v[i], factor);
  pack.To(line.w);
  return line;
}

}  // namespace tutti::cuda
