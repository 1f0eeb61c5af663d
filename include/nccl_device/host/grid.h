// SPDX-License-Identifier: Apache-2.0
//
// The parts of CUDA C++ beside libcu++ that kernels use, for kernels compiled as code of the host:
// indices, barriers, shuffles, fences. Included by tutti/host_kernel.h. A function of a kernel may
// also be called outside of a grid, as the only thread of its block.

#ifndef NCCL_DEVICE_HOST_GRID_H_
#define NCCL_DEVICE_HOST_GRID_H_

#include <time.h>

#include "nccl_device/host/cuda_names.h"
#include "tutti/host_grid.h"

// Headers of CUDA in the include path define the same words, also without a meaning.
#ifndef __global__
#define __global__
#endif
#ifndef __device__
#define __device__
#endif
#ifndef __host__
#define __host__
#endif
#ifndef __forceinline__
#define __forceinline__ inline
#endif
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#undef __shared__
#define __shared__ static_assert(false, "host kernels declare shared variables by TUTTI_SHARED");

namespace tutti {
namespace host {

inline constexpr tuttiHostThread_t kAlone = {{0, 0, 0}, {0, 0, 0}, {1, 1, 1},
                                             {1, 1, 1}, 0,         nullptr};
// The grid's thread that runs on the calling thread.
inline thread_local const tuttiHostThread_t* self = &kAlone;

inline bool Alone() { return self->block == nullptr; }
inline unsigned Lane() { return self->number % TUTTI_HOST_WARP_SIZE; }

// Returns the argument `mine` of thread `source` of the block. `sync` is a barrier of the calling
// threads, `source` among them.
template <typename T, typename Sync>
T ReadFrom(const T& mine, unsigned source, Sync sync) {
  if (Alone()) return mine;
  const void** const places = tuttiHostExchange(self);
  places[self->number] = &mine;
  sync();
  const T value = *static_cast<const T*>(places[source]);
  sync();
  return value;
}

// Returns the block's variable for the type `Place`, one for each place in the source.
template <typename T, typename Place>
T& SharedVariable(Place) {
  static const char key = 0;
  static T of_one_thread;
  if (Alone()) return of_one_thread;
  return *static_cast<T*>(tuttiHostSharedVariable(self, &key, sizeof(T), alignof(T)));
}

}  // namespace host
}  // namespace tutti

inline thread_local tuttiDim3_t threadIdx = {0, 0, 0};
inline thread_local tuttiDim3_t blockIdx = {0, 0, 0};
inline thread_local tuttiDim3_t blockDim = {1, 1, 1};
inline thread_local tuttiDim3_t gridDim = {1, 1, 1};
inline constexpr int warpSize = TUTTI_HOST_WARP_SIZE;

inline void __syncthreads() {
  if (!tutti::host::Alone()) tuttiHostSyncBlock(tutti::host::self);
}
inline void __syncwarp(unsigned mask = ~0u) {
  if (!tutti::host::Alone()) tuttiHostSyncWarp(tutti::host::self, mask);
}

// Lanes of a warp read a value of another lane. All lanes of `mask` call; groups of `width` lanes,
// a power of two, keep to themselves. A lane whose source lies outside of its group gets its own
// value.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
  const unsigned lane = tutti::host::Lane();
  const auto group = static_cast<unsigned>(width);
  const unsigned from = lane / group * group + static_cast<unsigned>(source) % group;
  return tutti::host::ReadFrom(value, tutti::host::self->number - lane + from,
                               [mask] { __syncwarp(mask); });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_bits, int width = warpSize) {
  const auto lane = static_cast<int>(tutti::host::Lane());
  const int other = lane ^ lane_bits;
  // Lanes of an earlier group can be read, and lanes of a later group cannot.
  return __shfl_sync(mask, value, other / width > lane / width ? lane : other);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const int place = static_cast<int>(tutti::host::Lane()) % width;
  const int other = place + static_cast<int>(delta);
  return __shfl_sync(mask, value, other < width ? other : place, width);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
  const int place = static_cast<int>(tutti::host::Lane()) % width;
  const int other = place - static_cast<int>(delta);
  return __shfl_sync(mask, value, other >= 0 ? other : place, width);
}
// Returns the lanes of `mask` with a true `predicate`.
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned first = tutti::host::self->number - tutti::host::Lane();
  unsigned lanes = 0;
  if (tutti::host::Alone()) return predicate != 0 ? 1 : 0;
  const void** const places = tuttiHostExchange(tutti::host::self);
  places[tutti::host::self->number] = &predicate;
  __syncwarp(mask);
  const unsigned threads = tutti::host::self->block_size.x * tutti::host::self->block_size.y *
                           tutti::host::self->block_size.z;
  for (unsigned lane = 0; lane < TUTTI_HOST_WARP_SIZE && first + lane < threads; ++lane) {
    if ((mask >> lane & 1) != 0 && *static_cast<const int*>(places[first + lane]) != 0)
      lanes |= 1u << lane;
  }
  __syncwarp(mask);
  return lanes;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

inline void __threadfence_block() { tutti::host::Fence(std::memory_order_seq_cst); }
inline void __threadfence() { tutti::host::Fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { tutti::host::Fence(std::memory_order_seq_cst); }

// A cycle of a host kernel is a nanosecond.
inline long long clock64() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

#endif  // NCCL_DEVICE_HOST_GRID_H_
