// SPDX-License-Identifier: Apache-2.0
//
// The loop behind all functions of nccl_device/reduce_copy.h, and its parts: the places of buffers,
// and the sums of elements.

#ifndef NCCL_DEVICE_IMPL_REDUCE_COPY__IMPL_H_
#define NCCL_DEVICE_IMPL_REDUCE_COPY__IMPL_H_

#include "nccl_device/impl/multimem_buffers.h"
#include "nccl_device/ptr.h"

#if TUTTI_DEVICE_API

#include <type_traits>

namespace tutti {
namespace device {

// Leaves an overload out whose count would be something else than a number.
template <typename T>
using IfInteger = typename std::enable_if<std::is_integral<T>::value>::type;

// -------------------------------------------------------------------------------------------------
// Where the buffers lie: functions from 0 … n-1 to addresses
// -------------------------------------------------------------------------------------------------

template <typename T>
struct OneBuffer {
  NCCL_DEVICE_INLINE T* operator()(int) const { return buffer; }
  T* buffer;
};
template <typename T>
struct BufferOfRanks {
  NCCL_DEVICE_INLINE T* operator()(int rank) const { return buffer.peerPtr(team, rank); }
  ncclSymPtr<T> buffer;
  ncclTeam team;
};
template <typename T>
struct BuffersApart {
  NCCL_DEVICE_INLINE T* operator()(int i) const {
    return first + static_cast<size_t>(i) * distance;
  }
  T* first;
  size_t distance;  // In elements.
};

// In a checked build, checks all buffers of known length: the buffers in windows.
template <typename Buffers>
NCCL_DEVICE_INLINE void CheckBuffers(const Buffers&, int, size_t) {}
#if TUTTI_CHECKED_KERNELS
template <typename T>
NCCL_DEVICE_INLINE void CheckBuffers(const BufferOfRanks<T>& buffers, int num_ranks, size_t count) {
  const ncclWindow_t window = buffers.buffer.window;
  for (int rank = 0; count > 0 && rank < num_ranks; ++rank) {
    const int place =
        LoadConstant(&window->lsaRank) + (rank - buffers.team.rank) * buffers.team.stride;
    CheckPlace(window, buffers.buffer.offset, count * sizeof(T), place, "a sum or a copy",
               __LINE__);
  }
}
#endif

// -------------------------------------------------------------------------------------------------
// How elements are reduced
// -------------------------------------------------------------------------------------------------

// The type for sums of elements of type T.
template <typename T>
struct SumType {
  using Type = T;
};
#ifdef __CUDA_FP16_TYPES_EXIST__
template <>
struct SumType<__half> {
  using Type = float;
};
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
template <>
struct SumType<__nv_bfloat16> {
  using Type = float;
};
#endif
#if defined(__CUDA_FP8_TYPES_EXIST__) && defined(__CUDA_FP16_TYPES_EXIST__)
template <>
struct SumType<__nv_fp8_e4m3> {
  using Type = __half;
};
template <>
struct SumType<__nv_fp8_e5m2> {
  using Type = __half;
};
#endif

template <typename T>
struct Sum {
  using Accumulator = typename SumType<T>::Type;
  NCCL_DEVICE_INLINE Accumulator operator()(Accumulator a, Accumulator b) const {
    return static_cast<Accumulator>(a + b);
  }
};

// For copies, which reduce nothing and keep the bits of every element.
template <typename T>
struct Copied {
  using Accumulator = T;
  NCCL_DEVICE_INLINE T operator()(T a, T) const { return a; }
};

// The caller's own operator on two elements.
template <typename T, typename Op>
struct OwnOperator {
  using Accumulator = T;
  NCCL_DEVICE_INLINE T operator()(T a, T b) const { return op(a, b); }
  const Op& op;
};

// -------------------------------------------------------------------------------------------------
// The loop
// -------------------------------------------------------------------------------------------------

// 16 bytes of elements, the widest access of a thread.
template <typename T>
struct alignas(16) Pack {
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  T element[kElements];
};

// Returns `buffer` as packs, and its address. Buffers in multicast memory have their own
// (multimem_buffers.h).
template <typename T>
NCCL_DEVICE_INLINE Pack<T>* AsPacks(T* buffer) {
  return reinterpret_cast<Pack<T>*>(buffer);
}
template <typename T>
NCCL_DEVICE_INLINE uintptr_t AddressOf(T* buffer) {
  return reinterpret_cast<uintptr_t>(buffer);
}

// Reduces element `at` of all sources and stores the result in all destinations.
template <typename T, typename Sources, typename Destinations, typename Op>
NCCL_DEVICE_INLINE void ReduceElement(const Sources& sources, int num_sources,
                                      const Destinations& destinations, int num_destinations,
                                      const Op& op, size_t at) {
  using Accumulator = typename Op::Accumulator;
  auto sum = static_cast<Accumulator>(sources(0)[at]);
  for (int i = 1; i < num_sources; ++i) sum = op(sum, static_cast<Accumulator>(sources(i)[at]));
  const T result = static_cast<T>(sum);
  for (int i = 0; i < num_destinations; ++i) destinations(i)[at] = result;
}

// Does the same for up to kUnroll packs at distances of `stride` from `first` on, of `end` packs
// from element `head` on. All loads of a source are issued before the first is used.
template <typename T, int kUnroll, typename Sources, typename Destinations, typename Op>
NCCL_DEVICE_INLINE void ReducePacks(const Sources& sources, int num_sources,
                                    const Destinations& destinations, int num_destinations,
                                    const Op& op, size_t head, size_t first, size_t stride,
                                    size_t end) {
  using Accumulator = typename Op::Accumulator;
  constexpr int kElements = Pack<T>::kElements;
  Accumulator sum[kUnroll][kElements];
  for (int source = 0; source < num_sources; ++source) {
    const auto packs = AsPacks(sources(source) + head);
    Pack<T> loaded[kUnroll];
#if NCCL_CHECK_CUDACC
#pragma unroll
#endif
    for (int u = 0; u < kUnroll; ++u) {
      const size_t at = first + static_cast<size_t>(u) * stride;
      if (at < end) loaded[u] = packs[at];
    }
#if NCCL_CHECK_CUDACC
#pragma unroll
#endif
    for (int u = 0; u < kUnroll; ++u) {
      if (first + static_cast<size_t>(u) * stride >= end) break;
      for (int e = 0; e < kElements; ++e) {
        const auto value = static_cast<Accumulator>(loaded[u].element[e]);
        sum[u][e] = source == 0 ? value : op(sum[u][e], value);
      }
    }
  }
#if NCCL_CHECK_CUDACC
#pragma unroll
#endif
  for (int u = 0; u < kUnroll; ++u) {
    const size_t at = first + static_cast<size_t>(u) * stride;
    if (at >= end) break;
    Pack<T> result;
    for (int e = 0; e < kElements; ++e) result.element[e] = static_cast<T>(sum[u][e]);
    for (int i = 0; i < num_destinations; ++i) AsPacks(destinations(i) + head)[at] = result;
  }
}

// Returns the number of elements before the first address that is a multiple of 16 in every buffer;
// `count` for buffers without a common place.
template <typename T, typename Sources, typename Destinations>
NCCL_DEVICE_INLINE size_t ElementsBeforePacks(const Sources& sources, int num_sources,
                                              const Destinations& destinations,
                                              int num_destinations, size_t count) {
  constexpr uintptr_t kBytes = sizeof(Pack<T>);
  const uintptr_t past = AddressOf(sources(0)) % kBytes;
  if (past % sizeof(T) != 0) return count;
  for (int i = 1; i < num_sources; ++i)
    if (AddressOf(sources(i)) % kBytes != past) return count;
  for (int i = 0; i < num_destinations; ++i)
    if (AddressOf(destinations(i)) % kBytes != past) return count;
  const size_t head = (kBytes - past) % kBytes / sizeof(T);
  return head < count ? head : count;
}

// Reduces `count` elements of all sources, in the order of the sources, and stores the result in
// all destinations. The group's threads share the elements, without a barrier.
template <typename T, int kUnrollElements, typename Coop, typename Sources, typename Destinations,
          typename Op>
NCCL_DEVICE_INLINE void ReduceCopy(Coop coop, const Sources& sources, int num_sources,
                                   const Destinations& destinations, int num_destinations,
                                   const Op& op, size_t count) {
  static_assert(16 % sizeof(T) == 0, "elements have 1, 2, 4, 8 or 16 bytes");
  if (num_sources <= 0) return;
  CheckBuffers(sources, num_sources, count);
  CheckBuffers(destinations, num_destinations, count);
  constexpr int kElements = Pack<T>::kElements;
  constexpr int kUnroll = kUnrollElements > kElements ? kUnrollElements / kElements : 1;
  const auto rank = static_cast<size_t>(coop.thread_rank());
  const auto threads = static_cast<size_t>(coop.size());

  const size_t head =
      ElementsBeforePacks<T>(sources, num_sources, destinations, num_destinations, count);
  const size_t packs = (count - head) / kElements;
  const size_t tail = head + packs * kElements;
  for (size_t i = rank; i < head; i += threads)
    ReduceElement<T>(sources, num_sources, destinations, num_destinations, op, i);
  for (size_t i = rank; i < packs; i += threads * kUnroll)
    ReducePacks<T, kUnroll>(sources, num_sources, destinations, num_destinations, op, head, i,
                            threads, packs);
  for (size_t i = tail + rank; i < count; i += threads)
    ReduceElement<T>(sources, num_sources, destinations, num_destinations, op, i);
}

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_REDUCE_COPY__IMPL_H_
