// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/barrier.h: barriers between kernels of all ranks, by memory inside an LSA team and by
// signals of GIN between teams.

#ifndef NCCL_DEVICE_BARRIER_H_
#define NCCL_DEVICE_BARRIER_H_

#include "nccl_device/gin_barrier.h"
#include "nccl_device/lsa_barrier.h"

#if TUTTI_DEVICE_API

// Barrier `index` of barrierCount; for the rest see ncclLsaBarrierSession and
// ncclGinBarrierSession. A barrier of the world first meets inside each LSA team, and then each
// rank meets its rail: all ranks with the same place in their teams.
template <typename Coop>
struct ncclBarrierSession {
 public:
  // The world, a team of memory, a rail. Without a GIN connection the world is one LSA team.
  NCCL_DEVICE_INLINE ncclBarrierSession(Coop coop, ncclTeamTagWorld, ncclGin gin, uint32_t index,
                                        bool multimem = false);
  NCCL_DEVICE_INLINE ncclBarrierSession(Coop coop, ncclTeamTagLsa, const ncclDevComm& comm,
                                        uint32_t index, bool multimem = false);
  NCCL_DEVICE_INLINE ncclBarrierSession(Coop coop, ncclTeamTagRail, ncclGin gin, uint32_t index);
  // Barriers of the caller's own: the ranks of innerTeam reach one another's memory, and the ranks
  // of outerTeam have the same place in their inner teams.
  NCCL_DEVICE_INLINE ncclBarrierSession(Coop coop, ncclTeam innerTeam, ncclTeam outerTeam,
                                        ncclGin gin, ncclLsaBarrierHandle innerHandle,
                                        ncclGinBarrierHandle outerHandle, uint32_t index,
                                        bool multimem = false,
                                        ncclMultimemHandle innerMmHandle = {});
  ncclBarrierSession(const ncclBarrierSession&) = delete;

  // The two barriers by themselves. A barrier of an LSA team has none of GIN, and a rail's has none
  // of memory.
  NCCL_DEVICE_INLINE ncclLsaBarrierSession<Coop>& lsaBarrier() { return lsa_; }
  NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop>& ginBarrier() { return gin_barrier_; }

  // The fence is for the session's context. Puts may come from any rank of the world. If puts are
  // not limited to rails, a fence for them therefore takes a barrier of all ranks over GIN.
  NCCL_DEVICE_INLINE void sync(Coop coop, cuda::memory_order order,
                               ncclGinFenceLevel fence = ncclGinFenceLevel::Put |
                                                         ncclGinFenceLevel::Get);
  // The second half has the time that the first half leaves, and runs in any case.
  NCCL_DEVICE_INLINE ncclResult_t sync(Coop coop, cuda::memory_order order, ncclGinFenceLevel fence,
                                       uint64_t timeoutCycles);

 private:
  // The halves of a barrier.
  enum class Halves : uint8_t { kLsa, kGin, kBoth };

  NCCL_DEVICE_INLINE ncclBarrierSession(Coop coop, Halves halves, bool is_world, ncclTeam inner,
                                        ncclTeam outer, ncclGin gin,
                                        ncclLsaBarrierHandle innerHandle,
                                        ncclGinBarrierHandle outerHandle, uint32_t index,
                                        bool multimem, ncclMultimemHandle multimemHandle)
      : halves_(halves),
        is_world_(is_world),
        index_(index),
        gin_(gin),
        lsa_(coop, gin.comm, inner, innerHandle, index, multimem, multimemHandle),
        gin_barrier_(coop, gin, outer, outerHandle, index) {}

  // Returns the halves of a barrier of the world.
  NCCL_DEVICE_INLINE static Halves OfWorld(const ncclDevComm& comm) {
    return comm.ginConnectionCount == 0 ? Halves::kLsa : Halves::kBoth;
  }
  NCCL_DEVICE_INLINE bool TakesWorld(ncclGinFenceLevel fence) const {
    return is_world_ && halves_ == Halves::kBoth && !gin_.comm.ginContextsRailed &&
           (fence & ncclGinFenceLevel::Put) != ncclGinFenceLevel::None;
  }
  // The second half releases everything that the first half has acquired.
  NCCL_DEVICE_INLINE cuda::memory_order OrderOfHalf(cuda::memory_order order) const {
    return order == cuda::memory_order_relaxed || halves_ != Halves::kBoth
               ? order
               : cuda::memory_order_acq_rel;
  }
  NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop> WorldBarrier(Coop coop) const {
    return ncclGinBarrierSession<Coop>(coop, gin_, ncclTeamWorld(gin_.comm),
                                       gin_.comm.hybridWorldGinBarrier, index_);
  }

  Halves halves_;
  bool is_world_;
  uint32_t index_;
  ncclGin gin_;
  ncclLsaBarrierSession<Coop> lsa_;
  ncclGinBarrierSession<Coop> gin_barrier_;
};

template <typename Coop>
NCCL_DEVICE_INLINE ncclBarrierSession<Coop>::ncclBarrierSession(Coop coop, ncclTeamTagWorld,
                                                                ncclGin gin, uint32_t index,
                                                                bool multimem)
    : ncclBarrierSession(coop, OfWorld(gin.comm), /*is_world=*/true, ncclTeamLsa(gin.comm),
                         ncclTeamRail(gin.comm), gin, gin.comm.hybridLsaBarrier,
                         gin.comm.hybridRailGinBarrier, index, multimem, gin.comm.lsaMultimem) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclBarrierSession<Coop>::ncclBarrierSession(Coop coop, ncclTeamTagLsa,
                                                                const ncclDevComm& comm,
                                                                uint32_t index, bool multimem)
    : ncclBarrierSession(coop, Halves::kLsa, /*is_world=*/false, ncclTeamLsa(comm),
                         ncclTeamRail(comm), ncclGin(comm, 0), comm.hybridLsaBarrier,
                         comm.hybridRailGinBarrier, index, multimem, comm.lsaMultimem) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclBarrierSession<Coop>::ncclBarrierSession(Coop coop, ncclTeamTagRail,
                                                                ncclGin gin, uint32_t index)
    : ncclBarrierSession(coop, Halves::kGin, /*is_world=*/false, ncclTeamLsa(gin.comm),
                         ncclTeamRail(gin.comm), gin, gin.comm.hybridLsaBarrier,
                         gin.comm.hybridRailGinBarrier, index, false, {}) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclBarrierSession<Coop>::ncclBarrierSession(Coop coop, ncclTeam innerTeam,
                                                                ncclTeam outerTeam, ncclGin gin,
                                                                ncclLsaBarrierHandle innerHandle,
                                                                ncclGinBarrierHandle outerHandle,
                                                                uint32_t index, bool multimem,
                                                                ncclMultimemHandle innerMmHandle)
    : ncclBarrierSession(coop, Halves::kBoth, /*is_world=*/false, innerTeam, outerTeam, gin,
                         innerHandle, outerHandle, index, multimem, innerMmHandle) {}

template <typename Coop>
NCCL_DEVICE_INLINE void ncclBarrierSession<Coop>::sync(Coop coop, cuda::memory_order order,
                                                       ncclGinFenceLevel fence) {
  if (TakesWorld(fence)) return WorldBarrier(coop).sync(coop, order, fence);
  if (halves_ != Halves::kGin) lsa_.sync(coop, OrderOfHalf(order));
  if (halves_ != Halves::kLsa) gin_barrier_.sync(coop, OrderOfHalf(order), fence);
}

template <typename Coop>
NCCL_DEVICE_INLINE ncclResult_t ncclBarrierSession<Coop>::sync(Coop coop, cuda::memory_order order,
                                                               ncclGinFenceLevel fence,
                                                               uint64_t timeoutCycles) {
  if (TakesWorld(fence)) return WorldBarrier(coop).sync(coop, order, fence, timeoutCycles);
  const uint64_t start = tutti::device::Cycles();
  ncclResult_t inside = ncclSuccess, between = ncclSuccess;
  if (halves_ != Halves::kGin) inside = lsa_.sync(coop, OrderOfHalf(order), timeoutCycles);
  const uint64_t passed = tutti::device::Cycles() - start;
  if (halves_ != Halves::kLsa)
    between = gin_barrier_.sync(coop, OrderOfHalf(order), fence,
                                passed < timeoutCycles ? timeoutCycles - passed : 0);
  return inside != ncclSuccess ? inside : between;
}

// A barrier for one use: a session and its sync.
template <typename Coop>
NCCL_DEVICE_INLINE void ncclBarrier(Coop coop, ncclTeamTagWorld tag, ncclGin gin, uint32_t index,
                                    cuda::memory_order order = cuda::memory_order_acq_rel,
                                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put |
                                                              ncclGinFenceLevel::Get,
                                    bool multimem = false) {
  ncclBarrierSession<Coop>(coop, tag, gin, index, multimem).sync(coop, order, fence);
}
template <typename Coop>
NCCL_DEVICE_INLINE void ncclBarrier(Coop coop, ncclTeamTagRail tag, ncclGin gin, uint32_t index,
                                    cuda::memory_order order = cuda::memory_order_acq_rel,
                                    ncclGinFenceLevel fence = ncclGinFenceLevel::Put |
                                                              ncclGinFenceLevel::Get) {
  ncclBarrierSession<Coop>(coop, tag, gin, index).sync(coop, order, fence);
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_BARRIER_H_
