// SPDX-License-Identifier: Apache-2.0
//
// Buffers in multicast memory, for the loop of reduce_copy__impl.h: a read returns the sum over the
// ranks of a team, by the hardware, and a write goes to all of them. GPUs of compute capability 9.0
// and later have such memory. Elsewhere no handle leads a kernel here, and the code traps.
//
// Sums are of float, double, half, bfloat16 and integers of 32 and 64 bits. Halves and bfloat16 are
// summed in float. Copies are of any type.

#ifndef NCCL_DEVICE_IMPL_MULTIMEM_BUFFERS_H_
#define NCCL_DEVICE_IMPL_MULTIMEM_BUFFERS_H_

#include "nccl_device/impl/target.h"

#if TUTTI_DEVICE_API

#include <string.h>

#include <type_traits>

namespace tutti {
namespace device {

template <typename T>
struct Pack;

NCCL_DEVICE_INLINE void NoMultimem() {
#ifdef __CUDA_ARCH__
  __trap();
#elif !NCCL_CHECK_CUDACC
  __builtin_trap();
#endif
}

// -------------------------------------------------------------------------------------------------
// Units of the hardware's sums: a word, or four words
// -------------------------------------------------------------------------------------------------

// Sums words of a type; `Word` is the type of its registers. Specialised for the supported types.
template <typename T>
struct MultimemSum {
  static constexpr bool kKnown = false;
};

#if TUTTI_DEVICE_HAS_MULTIMEM
#define TUTTI_MULTIMEM_LOAD(type, kind, constraint)                      \
  static NCCL_DEVICE_INLINE type Load(const void* at) {                  \
    type sum;                                                            \
    asm volatile("multimem.ld_reduce.relaxed.sys.add." kind " %0, [%1];" \
                 : "=" constraint(sum)                                   \
                 : "l"(at)                                               \
                 : "memory");                                            \
    return sum;                                                          \
  }
#define TUTTI_MULTIMEM_LOAD4(type, kind, constraint)                                       \
  static NCCL_DEVICE_INLINE void Load4(const void* at, type* sum) {                        \
    asm volatile("multimem.ld_reduce.relaxed.sys.add." kind " {%0,%1,%2,%3}, [%4];"        \
                 : "=" constraint(sum[0]), "=" constraint(sum[1]), "=" constraint(sum[2]), \
                   "=" constraint(sum[3])                                                  \
                 : "l"(at)                                                                 \
                 : "memory");                                                              \
  }
#else
#define TUTTI_MULTIMEM_LOAD(type, kind, constraint)  \
  static NCCL_DEVICE_INLINE type Load(const void*) { \
    NoMultimem();                                    \
    return type();                                   \
  }
#define TUTTI_MULTIMEM_LOAD4(type, kind, constraint) \
  static NCCL_DEVICE_INLINE void Load4(const void*, type*) { NoMultimem(); }
#endif

template <>
struct MultimemSum<float> {
  static constexpr bool kKnown = true, kByFour = true;
  using Word = float;
  TUTTI_MULTIMEM_LOAD(float, "f32", "f")
  TUTTI_MULTIMEM_LOAD4(float, "v4.f32", "f")
};
template <>
struct MultimemSum<double> {
  static constexpr bool kKnown = true, kByFour = false;
  using Word = double;
  TUTTI_MULTIMEM_LOAD(double, "f64", "d")
};
template <>
struct MultimemSum<int32_t> {
  static constexpr bool kKnown = true, kByFour = false;
  using Word = int32_t;
  TUTTI_MULTIMEM_LOAD(int32_t, "s32", "r")
};
template <>
struct MultimemSum<uint32_t> {
  static constexpr bool kKnown = true, kByFour = false;
  using Word = uint32_t;
  TUTTI_MULTIMEM_LOAD(uint32_t, "u32", "r")
};
// The sum of two's complements has the same bits, signed or not.
struct MultimemSum64 {
  static constexpr bool kKnown = true, kByFour = false;
  using Word = uint64_t;
  TUTTI_MULTIMEM_LOAD(uint64_t, "u64", "l")
};
template <>
struct MultimemSum<long> : MultimemSum64 {};
template <>
struct MultimemSum<unsigned long> : MultimemSum64 {};
template <>
struct MultimemSum<long long> : MultimemSum64 {};
template <>
struct MultimemSum<unsigned long long> : MultimemSum64 {};
// Two elements are a word.
#ifdef __CUDA_FP16_TYPES_EXIST__
template <>
struct MultimemSum<__half> {
  static constexpr bool kKnown = true, kByFour = true;
  using Word = uint32_t;
  TUTTI_MULTIMEM_LOAD(uint32_t, "acc::f32.f16x2", "r")
  TUTTI_MULTIMEM_LOAD4(uint32_t, "acc::f32.v4.f16x2", "r")
};
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
template <>
struct MultimemSum<__nv_bfloat16> {
  static constexpr bool kKnown = true, kByFour = true;
  using Word = uint32_t;
  TUTTI_MULTIMEM_LOAD(uint32_t, "acc::f32.bf16x2", "r")
  TUTTI_MULTIMEM_LOAD4(uint32_t, "acc::f32.v4.bf16x2", "r")
};
#endif
#undef TUTTI_MULTIMEM_LOAD
#undef TUTTI_MULTIMEM_LOAD4

template <typename T>
NCCL_DEVICE_INLINE T LoadMultimem(const T* at) {
  using Sum = MultimemSum<T>;
  static_assert(Sum::kKnown, "the hardware sums no elements of this type");
  using Word = typename Sum::Word;
  // A half-word element is read with its neighbour, and the neighbour is thrown away.
  const uintptr_t past = reinterpret_cast<uintptr_t>(at) % sizeof(Word);
  const Word word = Sum::Load(reinterpret_cast<const char*>(at) - past);
  T element;
  memcpy(&element, reinterpret_cast<const char*>(&word) + past, sizeof(T));
  return element;
}
template <typename T>
NCCL_DEVICE_INLINE Pack<T> LoadMultimem(const Pack<T>* at) {
  using Sum = MultimemSum<T>;
  static_assert(Sum::kKnown, "the hardware sums no elements of this type");
  using Word = typename Sum::Word;
  constexpr size_t kWords = sizeof(Pack<T>) / sizeof(Word);
  Word words[kWords];
  if constexpr (Sum::kByFour) {
    Sum::Load4(at, words);
  } else {
    for (size_t i = 0; i < kWords; ++i) words[i] = Sum::Load(reinterpret_cast<const Word*>(at) + i);
  }
  Pack<T> pack;
  memcpy(&pack, words, sizeof(pack));
  return pack;
}

// Stores 1 to 16 bytes, a power of two, on all ranks.
template <typename Unit>
NCCL_DEVICE_INLINE void StoreMultimem([[maybe_unused]] Unit* at,
                                      [[maybe_unused]] const Unit& value) {
#if TUTTI_DEVICE_HAS_MULTIMEM
  if constexpr (sizeof(Unit) == 16) {
    uint32_t words[4];
    memcpy(words, &value, sizeof(words));
    asm volatile("multimem.st.relaxed.sys.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(at), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (sizeof(Unit) == 8) {
    uint64_t word;
    memcpy(&word, &value, sizeof(word));
    asm volatile("multimem.st.relaxed.sys.b64 [%0], %1;" ::"l"(at), "l"(word) : "memory");
  } else if constexpr (sizeof(Unit) == 4) {
    uint32_t word;
    memcpy(&word, &value, sizeof(word));
    asm volatile("multimem.st.relaxed.sys.b32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
  } else if constexpr (sizeof(Unit) == 2) {  // An ordinary store reaches all ranks, too.
    uint16_t word;
    memcpy(&word, &value, sizeof(word));
    asm volatile("st.relaxed.sys.b16 [%0], %1;" ::"l"(at), "h"(word) : "memory");
  } else {
    uint8_t word;
    memcpy(&word, &value, sizeof(word));
    asm volatile("st.relaxed.sys.b8 [%0], %1;" ::"l"(at), "r"(uint32_t{word}) : "memory");
  }
#else
  NoMultimem();
#endif
}

// -------------------------------------------------------------------------------------------------
// Pointers of the loop
// -------------------------------------------------------------------------------------------------

template <typename Unit>
struct MultimemSource {
  const Unit* address;
  NCCL_DEVICE_INLINE MultimemSource operator+(size_t units) const { return {address + units}; }
  NCCL_DEVICE_INLINE Unit operator[](size_t i) const { return LoadMultimem(address + i); }
};
template <typename Unit>
struct MultimemDestination {
  struct Place {
    Unit* address;
    NCCL_DEVICE_INLINE void operator=(const Unit& value) const { StoreMultimem(address, value); }
  };
  Unit* address;
  NCCL_DEVICE_INLINE MultimemDestination operator+(size_t units) const { return {address + units}; }
  NCCL_DEVICE_INLINE Place operator[](size_t i) const { return {address + i}; }
};

template <typename T>
NCCL_DEVICE_INLINE MultimemSource<Pack<T>> AsPacks(MultimemSource<T> buffer) {
  return {reinterpret_cast<const Pack<T>*>(buffer.address)};
}
template <typename T>
NCCL_DEVICE_INLINE MultimemDestination<Pack<T>> AsPacks(MultimemDestination<T> buffer) {
  return {reinterpret_cast<Pack<T>*>(buffer.address)};
}
template <typename T>
NCCL_DEVICE_INLINE uintptr_t AddressOf(MultimemSource<T> buffer) {
  return reinterpret_cast<uintptr_t>(buffer.address);
}
template <typename T>
NCCL_DEVICE_INLINE uintptr_t AddressOf(MultimemDestination<T> buffer) {
  return reinterpret_cast<uintptr_t>(buffer.address);
}

// Return buffers in multicast memory, by a function for their addresses, or by an address.
template <typename T, typename Addresses>
struct MultimemSources {
  NCCL_DEVICE_INLINE MultimemSource<T> operator()(int i) const { return {addresses(i)}; }
  const Addresses& addresses;
};
template <typename T, typename Addresses>
struct MultimemDestinations {
  NCCL_DEVICE_INLINE MultimemDestination<T> operator()(int i) const { return {addresses(i)}; }
  const Addresses& addresses;
};
template <typename T>
struct OneMultimemSource {
  NCCL_DEVICE_INLINE MultimemSource<T> operator()(int) const { return {address}; }
  T* address;
};
template <typename T>
struct OneMultimemDestination {
  NCCL_DEVICE_INLINE MultimemDestination<T> operator()(int) const { return {address}; }
  T* address;
};

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_MULTIMEM_BUFFERS_H_
