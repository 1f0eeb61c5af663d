// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/coop.h: groups of threads that work together. All threads of a group call a function
// that takes a Coop, with the same arguments. A group is any copyable type with thread_rank(),
// size() and sync(), for example CUDA's cooperative groups. After the barrier sync() every thread
// of the group sees the group's work before the barrier.

#ifndef NCCL_DEVICE_COOP_H_
#define NCCL_DEVICE_COOP_H_

#include "nccl_device/impl/target.h"

#if TUTTI_DEVICE_API

#include <new>

namespace tutti {
namespace device {

// Returns the calling thread's number in its warp.
NCCL_DEVICE_INLINE int LaneId() {
#ifdef __CUDA_ARCH__
  int lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
#elif NCCL_CHECK_CUDACC
  return 0;
#else
  return static_cast<int>(host::Lane());
#endif
}
NCCL_DEVICE_INLINE int CountLanes(uint32_t mask) {
#ifdef __CUDA_ARCH__
  return __popc(mask);
#else
  return __builtin_popcount(mask);
#endif
}
// Returns the number of the `rank`-th lane in `mask`.
NCCL_DEVICE_INLINE int NthLane(uint32_t mask, int rank) {
  for (; rank > 0; --rank) mask &= mask - 1;
  return CountLanes((mask & (~mask + 1)) - 1);
}
// Return the calling thread's number in its block, and the size of the block.
NCCL_DEVICE_INLINE int ThreadOfBlock() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
NCCL_DEVICE_INLINE int ThreadsOfBlock() {
  return static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
}

}  // namespace device
}  // namespace tutti

// `kThreads` neighbouring lanes of a warp, a power of two; the group begins at a multiple of
// kThreads.
template <int kThreads>
struct ncclCoopTile {
  static_assert(kThreads > 0 && kThreads <= 32 && (kThreads & (kThreads - 1)) == 0,
                "a tile has 1, 2, 4, 8, 16 or 32 lanes");

  NCCL_DEVICE_INLINE int thread_rank() const { return tutti::device::LaneId() % kThreads; }
  NCCL_DEVICE_INLINE constexpr int size() const { return kThreads; }
  NCCL_DEVICE_INLINE constexpr int num_threads() const { return kThreads; }
  NCCL_DEVICE_INLINE uint32_t laneMask() const {
    return (UINT32_MAX >> (32 - kThreads)) << (tutti::device::LaneId() & -kThreads);
  }
  NCCL_DEVICE_INLINE void sync() {
    if (kThreads > 1) __syncwarp(laneMask());
  }
};
using ncclCoopThread = ncclCoopTile<1>;
using ncclCoopWarp = ncclCoopTile<32>;

// The lanes of a warp with a bit in `lmask`.
struct ncclCoopLanes {
  uint32_t lmask;

  NCCL_DEVICE_INLINE constexpr ncclCoopLanes(uint32_t lanes = ~0u) : lmask(lanes) {}
  NCCL_DEVICE_INLINE int thread_rank() const {
    return tutti::device::CountLanes(lmask & ((1u << tutti::device::LaneId()) - 1));
  }
  NCCL_DEVICE_INLINE int size() const { return tutti::device::CountLanes(lmask); }
  NCCL_DEVICE_INLINE int num_threads() const { return size(); }
  NCCL_DEVICE_INLINE void sync() { __syncwarp(lmask); }
};

// `nWarps` neighbouring warps of a block, from `warp0` on. Spans of a block in use at the same time
// have different ids, from 0 to 14.
struct ncclCoopWarpSpan {
  uint32_t warp0 : 8, nWarps : 8, id : 8;

  NCCL_DEVICE_INLINE constexpr ncclCoopWarpSpan(int first, int warps, int barrier_id)
      : warp0(static_cast<uint8_t>(first)),
        nWarps(static_cast<uint8_t>(warps)),
        id(static_cast<uint8_t>(barrier_id)) {}
  NCCL_DEVICE_INLINE int thread_rank() const {
    return tutti::device::ThreadOfBlock() - 32 * static_cast<int>(warp0);
  }
  NCCL_DEVICE_INLINE int size() const { return 32 * static_cast<int>(nWarps); }
  NCCL_DEVICE_INLINE int num_threads() const { return size(); }
  NCCL_DEVICE_INLINE void sync() {
#ifdef __CUDA_ARCH__
    // Barrier 0 is __syncthreads.
    asm volatile("barrier.sync %0, %1;" ::"r"(1 + id), "r"(32 * nWarps) : "memory");
#elif !NCCL_CHECK_CUDACC
    tuttiHostSyncNamed(tutti::host::self, id, 32 * nWarps);
#endif
  }
};

// All threads of the block.
struct ncclCoopCta {
  NCCL_DEVICE_INLINE int thread_rank() const { return tutti::device::ThreadOfBlock(); }
  NCCL_DEVICE_INLINE int size() const { return tutti::device::ThreadsOfBlock(); }
  NCCL_DEVICE_INLINE int num_threads() const { return size(); }
  NCCL_DEVICE_INLINE void sync() { __syncthreads(); }
};

// Holds a group of any type of up to 16 bytes, for functions that are not templates.
struct ncclCoopAny {
  struct Storage {
    alignas(void*) char space[16];
  };
  struct VTable {
    int (*thread_rank)(const void*);
    int (*size)(const void*);
    void (*sync)(void*);
  };

  ncclCoopAny() = default;
  ncclCoopAny(const ncclCoopAny&) = default;
  ncclCoopAny(ncclCoopAny&&) = default;
  ncclCoopAny& operator=(const ncclCoopAny&) = default;
  template <typename Coop>
  NCCL_DEVICE_INLINE ncclCoopAny(Coop coop) : vtable(FunctionsOf<Coop>()) {
    ::new (static_cast<void*>(&storage)) Coop(coop);
  }

  NCCL_DEVICE_INLINE int thread_rank() const { return vtable->thread_rank(&storage); }
  NCCL_DEVICE_INLINE int size() const { return vtable->size(&storage); }
  NCCL_DEVICE_INLINE int num_threads() const { return size(); }
  NCCL_DEVICE_INLINE void sync() { vtable->sync(&storage); }

  Storage storage;
  const VTable* vtable;

 private:
  template <typename Coop>
  struct Functions {
    NCCL_DEVICE_INLINE static int ThreadRank(const void* coop) {
      return static_cast<int>(static_cast<const Coop*>(coop)->thread_rank());
    }
    NCCL_DEVICE_INLINE static int Size(const void* coop) {
      return static_cast<int>(static_cast<const Coop*>(coop)->size());
    }
    NCCL_DEVICE_INLINE static void Sync(void* coop) { static_cast<Coop*>(coop)->sync(); }
  };
  template <typename Coop>
  NCCL_DEVICE_INLINE static const VTable* FunctionsOf() {
    static_assert(sizeof(Coop) <= sizeof(Storage) && alignof(Coop) <= alignof(Storage),
                  "the group does not fit into an ncclCoopAny");
    static constexpr VTable kFunctions = {Functions<Coop>::ThreadRank, Functions<Coop>::Size,
                                          Functions<Coop>::Sync};
    return &kFunctions;
  }
};

// Returns the group's lanes in the caller's warp; all lanes for a group of warps.
template <int kThreads>
NCCL_DEVICE_INLINE uint32_t ncclCoopGetLaneMask(ncclCoopTile<kThreads> coop) {
  return coop.laneMask();
}
NCCL_DEVICE_INLINE uint32_t ncclCoopGetLaneMask(ncclCoopLanes coop) { return coop.lmask; }
NCCL_DEVICE_INLINE uint32_t ncclCoopGetLaneMask(ncclCoopWarpSpan) { return UINT32_MAX; }
NCCL_DEVICE_INLINE uint32_t ncclCoopGetLaneMask(ncclCoopCta) { return UINT32_MAX; }

// Return whether the compiler knows that the group is one thread, and whether the group lies in one
// warp.
template <typename Coop>
NCCL_DEVICE_INLINE constexpr bool ncclCoopIsThread(Coop) {
  return false;
}
NCCL_DEVICE_INLINE constexpr bool ncclCoopIsThread(ncclCoopThread) { return true; }
template <typename Coop>
NCCL_DEVICE_INLINE constexpr bool ncclCoopWithinWarp(Coop) {
  return false;
}
template <int kThreads>
NCCL_DEVICE_INLINE constexpr bool ncclCoopWithinWarp(ncclCoopTile<kThreads>) {
  return true;
}
NCCL_DEVICE_INLINE constexpr bool ncclCoopWithinWarp(ncclCoopLanes) { return true; }

// Returns lanes of the caller's warp, the caller included, that run together at this point and can
// act as a group. On the host the caller is the only lane.
NCCL_DEVICE_INLINE ncclCoopLanes ncclCoopCoalesced() {
#ifdef __CUDA_ARCH__
  return ncclCoopLanes(__activemask());
#else
  return ncclCoopLanes(1u << tutti::device::LaneId());
#endif
}
// The same where all threads of a group have come to this point.
template <typename Coop>
NCCL_DEVICE_INLINE ncclCoopWarp ncclCoopCoalesced(Coop) {
  return ncclCoopWarp();
}
template <int kThreads>
NCCL_DEVICE_INLINE ncclCoopTile<kThreads> ncclCoopCoalesced(ncclCoopTile<kThreads> coop) {
  return coop;
}
NCCL_DEVICE_INLINE ncclCoopLanes ncclCoopCoalesced(ncclCoopLanes coop) { return coop; }

#endif  // TUTTI_DEVICE_API

#include "nccl_device/impl/coop__funcs.h"

#endif  // NCCL_DEVICE_COOP_H_
