// SPDX-License-Identifier: Apache-2.0
//
// How a barrier over the network works. Read by nccl_device/gin_barrier.h.
//
// Each rank of the team has a signal at every peer. To arrive, a rank adds 1 to its signal at each
// peer. To wait, a rank waits for the peers' signals, whose shadows count the awaited values. A
// fence for puts makes the signals strong, because they must come after earlier puts of their
// context. A rank then also signals itself, and on every context of the fence. The order of
// operations on different contexts is not known otherwise.

#ifndef NCCL_DEVICE_IMPL_GIN_BARRIER__FUNCS_H_
#define NCCL_DEVICE_IMPL_GIN_BARRIER__FUNCS_H_

#include "nccl_device/gin_barrier.h"

#if TUTTI_DEVICE_API

template <typename Coop>
NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop>::ncclGinBarrierSession(Coop coop, ncclGin gin,
                                                                      ncclTeam team,
                                                                      ncclGinBarrierHandle handle,
                                                                      uint32_t index)
    : coop_(coop),
      gin_(gin),
      team_(team),
      signal_(handle.signal0 + index * static_cast<uint32_t>(team.nRanks)),
      all_contexts_(false) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop>::ncclGinBarrierSession(Coop coop,
                                                                      ncclGinAllContexts contexts,
                                                                      ncclTeam team,
                                                                      ncclGinBarrierHandle handle,
                                                                      uint32_t index)
    : ncclGinBarrierSession(coop, ncclGin(contexts.comm, 0), team, handle, index) {
  all_contexts_ = true;
}

template <typename Coop>
NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop>::ncclGinBarrierSession(Coop coop, ncclGin gin,
                                                                      ncclTeamTagRail,
                                                                      uint32_t index)
    : ncclGinBarrierSession(coop, gin, ncclTeamRail(gin.comm), gin.comm.railGinBarrier, index) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop>::ncclGinBarrierSession(Coop coop, ncclGin gin,
                                                                      ncclTeamTagWorld,
                                                                      uint32_t index)
    : ncclGinBarrierSession(coop, gin, ncclTeamWorld(gin.comm), gin.comm.worldGinBarrier, index) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop>::ncclGinBarrierSession(Coop coop,
                                                                      ncclGinAllContexts contexts,
                                                                      ncclTeamTagRail,
                                                                      uint32_t index)
    : ncclGinBarrierSession(coop, contexts, ncclTeamRail(contexts.comm),
                            contexts.comm.railGinBarrier, index) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclGinBarrierSession<Coop>::ncclGinBarrierSession(Coop coop,
                                                                      ncclGinAllContexts contexts,
                                                                      ncclTeamTagWorld,
                                                                      uint32_t index)
    : ncclGinBarrierSession(coop, contexts, ncclTeamWorld(contexts.comm),
                            contexts.comm.worldGinBarrier, index) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclResult_t ncclGinBarrierSession<Coop>::Sync(
    cuda::memory_order order, ncclGinFenceLevel fence, tutti::device::WaitRounds rounds) {
  constexpr int kBits = 32;
  const bool fences_puts = (fence & ncclGinFenceLevel::Put) != ncclGinFenceLevel::None;
  const int peers = fences_puts ? team_.nRanks : team_.nRanks - 1;
  const int total = peers * Contexts();
  // With a releasing order nobody has made the group's writes visible to the proxy yet.
  const cuda::thread_scope released =
      tutti::device::ReleasePart(order) == cuda::memory_order_relaxed ? cuda::thread_scope_system
                                                                      : cuda::thread_scope_thread;
  const cuda::memory_order acquire = tutti::device::AcquirePart(order);
  coop_.sync();
  for (int i = coop_.thread_rank(); i < total; i += coop_.size()) {
    const ncclGin gin = ContextAt(i / peers);
    const ncclGinSignal_t there = signal_ + static_cast<uint32_t>(team_.rank);
    if (fences_puts)
      gin.signal(team_, PeerAt(i % peers), ncclGin_StrongSignalInc{there}, ncclCoopThread(),
                 ncclGin_None(), released);
    else
      gin.signal(team_, PeerAt(i % peers), ncclGin_WeakSignalInc{there}, ncclCoopThread(),
                 ncclGin_None(), released);
  }
  bool met = true;
  for (int i = coop_.thread_rank(); i < total; i += coop_.size()) {
    const ncclGin gin = ContextAt(i / peers);
    const ncclGinSignal_t here = signal_ + static_cast<uint32_t>(PeerAt(i % peers));
    const uint64_t expected = ++*gin.getSignalShadowPtr(here);
    met = met && gin._awaitSignal(here, expected, kBits, acquire, rounds);
  }
  if ((fence & ncclGinFenceLevel::Get) != ncclGinFenceLevel::None)
    for (int context = 0; context < Contexts(); ++context) ContextAt(context).flush(coop_, acquire);
  coop_.sync();
  return met ? ncclSuccess : ncclTimeout;
}

template <typename Coop>
NCCL_DEVICE_INLINE void ncclGinBarrierSession<Coop>::sync(Coop, cuda::memory_order order,
                                                          ncclGinFenceLevel fence) {
  Sync(order, fence, tutti::device::WaitRounds(gin_.comm.abortFlag));
}

template <typename Coop>
NCCL_DEVICE_INLINE ncclResult_t ncclGinBarrierSession<Coop>::sync(Coop, cuda::memory_order order,
                                                                  ncclGinFenceLevel fence,
                                                                  uint64_t timeoutCycles) {
  return Sync(order, fence, tutti::device::WaitRounds(gin_.comm.abortFlag, timeoutCycles));
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_GIN_BARRIER__FUNCS_H_
