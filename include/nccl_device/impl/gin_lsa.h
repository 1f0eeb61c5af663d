// SPDX-License-Identifier: Apache-2.0
//
// Short puts and gets within the LSA team, carried out by the kernels themselves: a copy by the
// proxy takes longer than a few stores, and a call of the library takes longer than a whole put of
// 8 bytes. On a GPU the signal and the counter of a put go through the queue, behind the operations
// posted before. On a host, where nothing toward a rank of the team is posted as a rule, the kernel
// adds to the words itself. Read by nccl_device/gin.h.
//
// A kernel must not touch memory outside of a window. The library therefore keeps the lengths of a
// window's parts behind its record (window_check.h), and a kernel leaves operations that may be
// wrong to the proxy.

#ifndef NCCL_DEVICE_IMPL_GIN_LSA_H_
#define NCCL_DEVICE_IMPL_GIN_LSA_H_

#include "nccl_device/impl/core__funcs.h"
#include "nccl_device/impl/gin_descriptor.h"
#include "nccl_device/impl/gin_proxy.h"

#if TUTTI_DEVICE_API

namespace tutti {
namespace device {

// The bytes that a group copies for each of its threads.
constexpr size_t kLsaBytesPerThread = 128;

// Returns the place of a rank in the LSA team; -1 outside the team.
NCCL_DEVICE_INLINE int LsaPlaceOf(const ncclDevComm& comm, int world_rank) {
  const int place = world_rank - (comm.rank - comm.lsaRank);
  return place >= 0 && place < comm.lsaSize ? place : -1;
}

// Returns whether the part of `place` is known to hold the bytes.
NCCL_DEVICE_INLINE bool KnownToHold(const ncclDevComm& comm, ncclWindow_t window, int place,
                                    size_t offset, size_t bytes) {
  if (!KnowsParts(window) || TableOfParts(window) != reinterpret_cast<uint64_t>(comm.windowTable))
    return false;
  const uint64_t size = LoadConstant(LengthsOfParts(window) + place);
  return offset <= size && bytes <= size - offset;
}

// Copies by all threads of a group, in the largest units of all addresses and lengths. The loads
// are volatile, because other ranks may have written newer data than a cache has.
template <typename Unit, typename Coop>
NCCL_DEVICE_INLINE void CopyUnits(Coop& coop, void* to, const void* from, size_t bytes) {
  for (size_t i = static_cast<size_t>(coop.thread_rank()); i < bytes / sizeof(Unit);
       i += static_cast<size_t>(coop.size()))
    static_cast<Unit*>(to)[i] = static_cast<const volatile Unit*>(from)[i];
}
template <typename Coop>
NCCL_DEVICE_INLINE void CopyTogether(Coop& coop, void* to, const void* from, size_t bytes) {
  const uint64_t bits = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) | bytes;
  if (bits % sizeof(uint64_t) == 0)
    CopyUnits<uint64_t>(coop, to, from, bytes);
  else if (bits % sizeof(uint32_t) == 0)
    CopyUnits<uint32_t>(coop, to, from, bytes);
  else
    CopyUnits<char>(coop, to, from, bytes);
}

// Returns whether the signal and the counter of a put are known to exist.
NCCL_DEVICE_INLINE bool KnownToExist(const ncclDevComm& comm, int place, const GinAction& action,
                                     const GinOperation& operation) {
  if ((operation.op & kGinWithCounter) != 0 &&
      operation.counter >= static_cast<uint32_t>(comm.ginCounterCount))
    return false;
  if (!action.present) return true;
  if (!action.va) return action.signal < static_cast<uint32_t>(comm.ginSignalCount);
  return action.offset % sizeof(uint64_t) == 0 &&
         KnownToHold(comm, action.window, place, action.offset, sizeof(uint64_t));
}

// Makes the stores of a group visible to all before the calling thread's next stores. The group has
// met.
NCCL_DEVICE_INLINE void ShowStores() {
#if NCCL_CHECK_CUDACC
  cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system);
#endif
}

}  // namespace device
}  // namespace tutti

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_GIN_LSA_H_
