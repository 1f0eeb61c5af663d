// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/gin_barrier.h: barriers between kernels of any ranks, over signals of GIN.

#ifndef NCCL_DEVICE_GIN_BARRIER_H_
#define NCCL_DEVICE_GIN_BARRIER_H_

#include "nccl_device/gin.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Fills *outReq, an element of the list of resource requirements, by which ncclDevCommCreate gives
// `team` nBarriers barriers over the network and stores their handle. *outHandle must live until
// then.
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq);
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                              ncclGinBarrierHandle_t* outHandle,
                                              ncclDevResourceRequirements_t* outReq);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#if TUTTI_DEVICE_API

// The further conditions of a barrier, as bits. Put: data that ranks of the team have put here
// before the barrier can be read after the barrier. Get: this rank's own gets from before the
// barrier are done.
enum class ncclGinFenceLevel : uint32_t { None = 0, Put = 1, Get = 2, Relaxed = None };

NCCL_HOST_DEVICE_INLINE constexpr ncclGinFenceLevel operator|(ncclGinFenceLevel a,
                                                              ncclGinFenceLevel b) {
  return static_cast<ncclGinFenceLevel>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
NCCL_HOST_DEVICE_INLINE constexpr ncclGinFenceLevel operator&(ncclGinFenceLevel a,
                                                              ncclGinFenceLevel b) {
  return static_cast<ncclGinFenceLevel>(static_cast<uint32_t>(a) & static_cast<uint32_t>(b));
}

// In place of a context: the barrier is a fence for all contexts of the device communicator.
struct ncclGinAllContexts {
  const ncclDevComm& comm;
  NCCL_HOST_DEVICE_INLINE constexpr ncclGinAllContexts(const ncclDevComm& in_comm)
      : comm(in_comm) {}
};

// Barrier `index` of a team, over one context or all contexts, as ncclLsaBarrierSession. The fence
// covers operations of these contexts only.
template <typename Coop>
struct ncclGinBarrierSession {
 public:
  NCCL_DEVICE_INLINE ncclGinBarrierSession(Coop coop, ncclGin gin, ncclTeam team,
                                           ncclGinBarrierHandle handle, uint32_t index);
  NCCL_DEVICE_INLINE ncclGinBarrierSession(Coop coop, ncclGinAllContexts contexts, ncclTeam team,
                                           ncclGinBarrierHandle handle, uint32_t index);
  // Barrier `index` of railGinBarrierCount, or of worldGinBarrierCount.
  NCCL_DEVICE_INLINE ncclGinBarrierSession(Coop coop, ncclGin gin, ncclTeamTagRail, uint32_t index);
  NCCL_DEVICE_INLINE ncclGinBarrierSession(Coop coop, ncclGin gin, ncclTeamTagWorld,
                                           uint32_t index);
  NCCL_DEVICE_INLINE ncclGinBarrierSession(Coop coop, ncclGinAllContexts contexts, ncclTeamTagRail,
                                           uint32_t index);
  NCCL_DEVICE_INLINE ncclGinBarrierSession(Coop coop, ncclGinAllContexts contexts, ncclTeamTagWorld,
                                           uint32_t index);
  ncclGinBarrierSession(const ncclGinBarrierSession&) = delete;

  // Waits until the groups of all ranks of the team have come. Ends early when the communicator is
  // aborted.
  NCCL_DEVICE_INLINE void sync(Coop coop, cuda::memory_order order,
                               ncclGinFenceLevel fence = ncclGinFenceLevel::Put |
                                                         ncclGinFenceLevel::Get);
  // The same for `timeoutCycles` at most, as in ncclLsaBarrierSession. The barrier stays usable.
  NCCL_DEVICE_INLINE ncclResult_t sync(Coop coop, cuda::memory_order order, ncclGinFenceLevel fence,
                                       uint64_t timeoutCycles);

 private:
  NCCL_DEVICE_INLINE ncclResult_t Sync(cuda::memory_order order, ncclGinFenceLevel fence,
                                       tutti::device::WaitRounds rounds);
  // The contexts of the fence are numbered from 0.
  NCCL_DEVICE_INLINE int Contexts() const {
    return all_contexts_ ? static_cast<int>(gin_.comm.ginContextCount) : 1;
  }
  NCCL_DEVICE_INLINE ncclGin ContextAt(int number) const {
    return all_contexts_ ? ncclGin(gin_.comm, number, gin_.resourceSharingMode) : gin_;
  }
  // Returns the `step`-th rank to signal: the next rank first, this rank last.
  NCCL_DEVICE_INLINE int PeerAt(int step) const {
    const int peer = team_.rank + 1 + step;
    return peer < team_.nRanks ? peer : peer - team_.nRanks;
  }

  Coop coop_;
  ncclGin gin_;
  ncclTeam team_;
  ncclGinSignal_t signal_;  // of rank 0 of the team
  bool all_contexts_;
};

// A barrier for one use: a session and its sync. `gin` is a context or ncclGinAllContexts; the rest
// is as in the constructors.
template <typename Coop, typename Gin>
NCCL_DEVICE_INLINE void ncclGinBarrier(Coop coop, Gin gin, ncclTeam team,
                                       ncclGinBarrierHandle handle, uint32_t index,
                                       cuda::memory_order order = cuda::memory_order_acq_rel,
                                       ncclGinFenceLevel fence = ncclGinFenceLevel::Put |
                                                                 ncclGinFenceLevel::Get) {
  ncclGinBarrierSession<Coop>(coop, gin, team, handle, index).sync(coop, order, fence);
}
template <typename Coop, typename Gin, typename Tag>
NCCL_DEVICE_INLINE void ncclGinBarrier(Coop coop, Gin gin, Tag tag, uint32_t index,
                                       cuda::memory_order order = cuda::memory_order_acq_rel,
                                       ncclGinFenceLevel fence = ncclGinFenceLevel::Put |
                                                                 ncclGinFenceLevel::Get) {
  ncclGinBarrierSession<Coop>(coop, gin, tag, index).sync(coop, order, fence);
}

#endif  // TUTTI_DEVICE_API

#include "nccl_device/impl/gin_barrier__funcs.h"

#endif  // NCCL_DEVICE_GIN_BARRIER_H_
