// SPDX-License-Identifier: Apache-2.0
//
// Teams of a device communicator, and where memory of windows lies. Read by ptr.h.

#ifndef NCCL_DEVICE_IMPL_CORE__FUNCS_H_
#define NCCL_DEVICE_IMPL_CORE__FUNCS_H_

#include "nccl_device/comm.h"
#include "nccl_device/coop.h"
#include "nccl_device/impl/window_check.h"

#ifdef __cplusplus

// The functions of core.h with a device communicator in place of a communicator.
NCCL_HOST_DEVICE_INLINE ncclTeam ncclTeamWorld(const ncclDevComm& comm) {
  return {comm.nRanks, comm.rank, 1};
}
NCCL_HOST_DEVICE_INLINE ncclTeam ncclTeamLsa(const ncclDevComm& comm) {
  return {comm.lsaSize, comm.lsaRank, 1};
}
NCCL_HOST_DEVICE_INLINE ncclTeam ncclTeamRail(const ncclDevComm& comm) {
  const auto size = static_cast<uint32_t>(comm.lsaSize);
  return {static_cast<int>(tutti::device::DivideBy(static_cast<uint32_t>(comm.nRanks), size,
                                                   comm.lsaSize_rcp32)),
          static_cast<int>(
              tutti::device::DivideBy(static_cast<uint32_t>(comm.rank), size, comm.lsaSize_rcp32)),
          comm.lsaSize};
}
NCCL_HOST_DEVICE_INLINE int ncclTeamRankToWorld(const ncclDevComm& comm, ncclTeam team, int rank) {
  return comm.rank + (rank - team.rank) * team.stride;
}
NCCL_HOST_DEVICE_INLINE int ncclTeamRankToLsa(const ncclDevComm& comm, ncclTeam team, int rank) {
  return comm.lsaRank + (rank - team.rank) * team.stride;
}

#endif  // __cplusplus

#if TUTTI_DEVICE_API

namespace tutti {
namespace device {

// Returns LSA rank `lsa_rank`'s part of the flat range of addresses from `base` on.
NCCL_DEVICE_INLINE char* LsaPart(char* base, uint32_t stride_4g, int lsa_rank) {
  return base + (static_cast<int64_t>(lsa_rank) * stride_4g << 32);
}
NCCL_DEVICE_INLINE char* LsaAddress(ncclWindow_t window, size_t offset, int lsa_rank) {
  return LsaPart(LoadConstant(&window->lsaFlatBase), LoadConstant(&window->stride4G), lsa_rank) +
         offset;
}
NCCL_DEVICE_INLINE void* ResourceAddress(const ncclDevComm& comm, ncclDevResourceHandle handle,
                                         int lsa_rank) {
  return LsaPart(comm.resourceWindow_inlined.lsaFlatBase, comm.resourceWindow_inlined.stride4G,
                 lsa_rank) +
         ncclGetResourceBufferOffset(handle);
}

}  // namespace device
}  // namespace tutti

// Return the address of byte `offset` of a window: on this rank; on rank `peer` of the LSA team; on
// rank `peer` of the world, or of `team`, which must be in the LSA team; in multicast memory.
// TUTTI_AND_SITE adds parameters in a checked build only (window_check.h).
NCCL_DEVICE_INLINE void* ncclGetLocalPointer(ncclWindow_t w, size_t offset TUTTI_AND_SITE) {
  const int own = tutti::device::LoadConstant(&w->lsaRank);
  TUTTI_CHECK_PLACE(w, offset, 0, own);
  return tutti::device::LsaAddress(w, offset, own);
}
NCCL_DEVICE_INLINE void* ncclGetLsaPointer(ncclWindow_t w, size_t offset, int peer TUTTI_AND_SITE) {
  TUTTI_CHECK_PLACE(w, offset, 0, peer);
  return tutti::device::LsaAddress(w, offset, peer);
}
NCCL_DEVICE_INLINE void* ncclGetPeerPointer(ncclWindow_t w, size_t offset,
                                            int peer TUTTI_AND_SITE) {
  const int distance = peer - tutti::device::LoadConstant(&w->worldRank);
  const int place = tutti::device::LoadConstant(&w->lsaRank) + distance;
  TUTTI_CHECK_PLACE(w, offset, 0, place);
  return tutti::device::LsaAddress(w, offset, place);
}
NCCL_DEVICE_INLINE void* ncclGetPeerPointer(ncclWindow_t w, size_t offset, ncclTeam team,
                                            int peer TUTTI_AND_SITE) {
  const int distance = (peer - team.rank) * team.stride;
  const int place = tutti::device::LoadConstant(&w->lsaRank) + distance;
  TUTTI_CHECK_PLACE(w, offset, 0, place);
  return tutti::device::LsaAddress(w, offset, place);
}
NCCL_DEVICE_INLINE void* ncclGetMultimemPointer(ncclWindow_t w, size_t offset,
                                                ncclMultimemHandle mmHandle) {
  return static_cast<char*>(mmHandle.mcBasePtr) +
         size_t{tutti::device::LoadConstant(&w->mcOffset4K)} * 4096 + offset;
}
NCCL_DEVICE_INLINE void* ncclGetLsaMultimemPointer(ncclWindow_t w, size_t offset,
                                                   const ncclDevComm& comm) {
  return ncclGetMultimemPointer(w, offset, comm.lsaMultimem);
}

// The same for a buffer of the device communicator's own.
NCCL_DEVICE_INLINE void* ncclGetResourceBufferLocalPointer(const ncclDevComm& comm,
                                                           ncclDevResourceHandle h TUTTI_AND_SITE) {
  TUTTI_CHECK_PLACE(comm.resourceWindow, ncclGetResourceBufferOffset(h), 0, comm.lsaRank);
  return tutti::device::ResourceAddress(comm, h, comm.lsaRank);
}
NCCL_DEVICE_INLINE void* ncclGetResourceBufferLsaPointer(const ncclDevComm& comm,
                                                         ncclDevResourceHandle h,
                                                         int peer TUTTI_AND_SITE) {
  TUTTI_CHECK_PLACE(comm.resourceWindow, ncclGetResourceBufferOffset(h), 0, peer);
  return tutti::device::ResourceAddress(comm, h, peer);
}
NCCL_DEVICE_INLINE void* ncclGetResourceBufferPeerPointer(const ncclDevComm& comm,
                                                          ncclDevResourceHandle h, ncclTeam team,
                                                          int peer TUTTI_AND_SITE) {
  const int place = ncclTeamRankToLsa(comm, team, peer);
  TUTTI_CHECK_PLACE(comm.resourceWindow, ncclGetResourceBufferOffset(h), 0, place);
  return tutti::device::ResourceAddress(comm, h, place);
}
NCCL_DEVICE_INLINE void* ncclGetResourceBufferMultimemPointer(const ncclDevComm& comm,
                                                              ncclDevResourceHandle h,
                                                              ncclMultimemHandle mmHandle) {
  return static_cast<char*>(mmHandle.mcBasePtr) +
         size_t{comm.resourceWindow_inlined.mcOffset4K} * 4096 + ncclGetResourceBufferOffset(h);
}
NCCL_DEVICE_INLINE void* ncclGetResourceBufferLsaMultimemPointer(const ncclDevComm& comm,
                                                                 ncclDevResourceHandle h) {
  return ncclGetResourceBufferMultimemPointer(comm, h, comm.lsaMultimem);
}

// Returns the window around `ptr`, by the address at which the program registered the window on
// this rank; null outside all windows. Every thread of the group searches by itself.
template <typename Coop>
NCCL_DEVICE_INLINE ncclWindow_t ncclFindWindow(Coop, const ncclDevComm& comm, const void* ptr) {
  const auto address = reinterpret_cast<uintptr_t>(ptr);
  for (const ncclDevCommWindowTable* table = comm.windowTable; table != nullptr;
       table = tutti::device::LoadConstant(&table->next)) {
    for (int i = 0; i < NCCL_DEV_COMM_WINDOW_TABLE_ENTRIES; ++i) {
      const ncclDevCommWindowTableEntry& entry = table->entries[i];
      const ncclWindow_t window = tutti::device::LoadConstant(&entry.window);
      if (window != nullptr && address - tutti::device::LoadConstant(&entry.base) <
                                   tutti::device::LoadConstant(&entry.size))
        return window;
    }
  }
  return nullptr;
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_CORE__FUNCS_H_
