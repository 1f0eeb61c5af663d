// SPDX-License-Identifier: Apache-2.0
//
// ncclCoopBcast. Read by nccl_device/coop.h.

#ifndef NCCL_DEVICE_IMPL_COOP__FUNCS_H_
#define NCCL_DEVICE_IMPL_COOP__FUNCS_H_

#include "nccl_device/coop.h"

#if TUTTI_DEVICE_API

namespace tutti {
namespace device {

#if NCCL_CHECK_CUDACC
// Returns the value of lane `source`. Values travel in words of four bytes.
template <typename T>
NCCL_DEVICE_INLINE T FromLane(uint32_t mask, T value, int source) {
  constexpr int kWords = DivideUp(static_cast<int>(sizeof(T)), 4);
  union {
    uint32_t word[kWords];
    T whole;
  };
  whole = value;
#pragma unroll
  for (int i = 0; i < kWords; ++i) word[i] = __shfl_sync(mask, word[i], source);
  return whole;
}

// Returns the shared memory by which groups of warps exchange a value: slot 0 for the block, 1 + id
// for a span.
NCCL_DEVICE_INLINE ulong2* BroadcastSlots() {
  __shared__ ulong2 slots[16];
  return slots;
}

// Returns the value of thread `root` of a group of warps.
template <typename Coop, typename T>
NCCL_DEVICE_INLINE T FromShared(Coop coop, int slot, T value, int root, bool entry_sync) {
  static_assert(sizeof(T) <= sizeof(ulong2), "ncclCoopBcast takes values of up to 16 bytes");
  // A thread may still be reading the value of the call before.
  if (entry_sync) coop.sync();
  T* const shared = reinterpret_cast<T*>(BroadcastSlots() + slot);
  if (coop.thread_rank() == root) *shared = value;
  coop.sync();
  return *shared;
}
#else
template <typename Coop, typename T>
T FromThread(Coop coop, T value, int thread_of_block) {
  return host::ReadFrom(value, static_cast<unsigned>(thread_of_block),
                        [&coop]() mutable { coop.sync(); });
}
#endif

}  // namespace device
}  // namespace tutti

// Returns thread `root`'s argument `value`. entrySync = false promises that the group has met since
// the last call.
template <int kThreads, typename T>
NCCL_DEVICE_INLINE T ncclCoopBcast(ncclCoopTile<kThreads> coop, T value, int root,
                                   [[maybe_unused]] bool entrySync = true) {
  const int lane = tutti::device::LaneId();
  const int source = (lane & -kThreads) + root;
#if NCCL_CHECK_CUDACC
  return tutti::device::FromLane(coop.laneMask(), value, source);
#else
  return tutti::device::FromThread(coop, value, tutti::device::ThreadOfBlock() - lane + source);
#endif
}
template <typename T>
NCCL_DEVICE_INLINE T ncclCoopBcast(ncclCoopLanes coop, T value, int root,
                                   [[maybe_unused]] bool entrySync = true) {
  const int source = tutti::device::NthLane(coop.lmask, root);
#if NCCL_CHECK_CUDACC
  return tutti::device::FromLane(coop.lmask, value, source);
#else
  return tutti::device::FromThread(
      coop, value, tutti::device::ThreadOfBlock() - tutti::device::LaneId() + source);
#endif
}
template <typename T>
NCCL_DEVICE_INLINE T ncclCoopBcast(ncclCoopWarpSpan coop, T value, int root,
                                   [[maybe_unused]] bool entrySync = true) {
#if NCCL_CHECK_CUDACC
  return tutti::device::FromShared(coop, 1 + static_cast<int>(coop.id), value, root, entrySync);
#else
  return tutti::device::FromThread(coop, value, 32 * static_cast<int>(coop.warp0) + root);
#endif
}
template <typename T>
NCCL_DEVICE_INLINE T ncclCoopBcast(ncclCoopCta coop, T value, int root,
                                   [[maybe_unused]] bool entrySync = true) {
#if NCCL_CHECK_CUDACC
  return tutti::device::FromShared(coop, 0, value, root, entrySync);
#else
  return tutti::device::FromThread(coop, value, root);
#endif
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_COOP__FUNCS_H_
