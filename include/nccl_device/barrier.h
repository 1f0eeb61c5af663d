// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/barrier.h: barriers over memory and network together. There is no network for kernels
// yet, so a session can be had for the LSA team only.

#ifndef NCCL_DEVICE_BARRIER_H_
#define NCCL_DEVICE_BARRIER_H_

#include "nccl_device/gin_barrier.h"
#include "nccl_device/lsa_barrier.h"

#if TUTTI_DEVICE_API

// Barrier `index` of those that barrierCount asked for; otherwise as ncclLsaBarrierSession.
template <typename Coop>
struct ncclBarrierSession {
 public:
  NCCL_DEVICE_INLINE ncclBarrierSession(Coop coop, ncclTeamTagLsa, const ncclDevComm& comm,
                                        uint32_t index, bool multimem = false)
      : lsa_(coop, comm, ncclTeamLsa(comm), comm.hybridLsaBarrier, index, multimem,
             comm.lsaMultimem) {}
  ncclBarrierSession(const ncclBarrierSession&) = delete;

  NCCL_DEVICE_INLINE ncclLsaBarrierSession<Coop>& lsaBarrier() { return lsa_; }

  NCCL_DEVICE_INLINE void sync(Coop coop, cuda::memory_order order,
                               ncclGinFenceLevel = ncclGinFenceLevel::Put |
                                                   ncclGinFenceLevel::Get) {
    lsa_.sync(coop, order);
  }
  NCCL_DEVICE_INLINE ncclResult_t sync(Coop coop, cuda::memory_order order, ncclGinFenceLevel,
                                       uint64_t timeoutCycles) {
    return lsa_.sync(coop, order, timeoutCycles);
  }

 private:
  ncclLsaBarrierSession<Coop> lsa_;
};

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_BARRIER_H_
