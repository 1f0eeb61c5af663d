// SPDX-License-Identifier: Apache-2.0
//
// How an LSA barrier works. Read by nccl_device/lsa_barrier.h; the buffer's layout is described at
// ncclLsaBarrierHandle.
//
// Over plain memory every rank has a cell for each peer. To arrive, a rank writes its next epoch
// into its cell on all peers; to wait, a rank reads its own cells until each holds this epoch or a
// later one. A cell has one writer and needs no atomic addition, and a rank can be at most one
// epoch ahead. Over multicast memory one addition reaches a counter on every rank. Epochs wrap
// around; nothing is ever reset.

#ifndef NCCL_DEVICE_IMPL_LSA_BARRIER__FUNCS_H_
#define NCCL_DEVICE_IMPL_LSA_BARRIER__FUNCS_H_

#include "nccl_device/lsa_barrier.h"

#if TUTTI_DEVICE_API

template <typename Coop>
NCCL_DEVICE_INLINE ncclLsaBarrierSession<Coop>::ncclLsaBarrierSession(
    Coop coop, const ncclDevComm& comm, ncclTeam team, ncclLsaBarrierHandle handle, uint32_t index,
    bool multimem, ncclMultimemHandle mmHandle)
    : coop_(coop),
      comm_(comm),
      team_(team),
      handle_(handle),
      index_(index),
      multimem_(multimem && TUTTI_DEVICE_HAS_MULTIMEM != 0),
      mm_handle_(mmHandle) {
  TUTTI_CHECK_BARRIER(index, handle.nBarriers);
  epoch_ = *KeptEpoch();
}

template <typename Coop>
NCCL_DEVICE_INLINE ncclLsaBarrierSession<Coop>::ncclLsaBarrierSession(Coop coop,
                                                                      const ncclDevComm& comm,
                                                                      ncclTeamTagLsa,
                                                                      uint32_t index, bool multimem)
    : ncclLsaBarrierSession(coop, comm, ncclTeamLsa(comm), comm.lsaBarrier, index, multimem,
                            comm.lsaMultimem) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclLsaBarrierSession<Coop>::~ncclLsaBarrierSession() {
  // In a session without an arrival other threads may still be reading the word.
  if (coop_.thread_rank() == 0 && *KeptEpoch() != epoch_) *KeptEpoch() = epoch_;
  coop_.sync();
}

template <typename Coop>
NCCL_DEVICE_INLINE uint32_t* ncclLsaBarrierSession<Coop>::KeptEpoch() const {
  auto* const state =
      static_cast<uint32_t*>(ncclGetResourceBufferLocalPointer(comm_, handle_.bufHandle));
  return state + (multimem_ ? 0 : handle_.nBarriers) + index_;
}

template <typename Coop>
NCCL_DEVICE_INLINE uint32_t* ncclLsaBarrierSession<Coop>::Cell(int owner, int from) const {
  auto* const state = static_cast<uint32_t*>(
      ncclGetResourceBufferPeerPointer(comm_, handle_.bufHandle, team_, owner));
  return state + 3 * handle_.nBarriers + index_ * static_cast<uint32_t>(team_.nRanks) + from;
}

template <typename Coop>
NCCL_DEVICE_INLINE uint32_t* ncclLsaBarrierSession<Coop>::Sum(void* state) const {
  return static_cast<uint32_t*>(state) + 2 * handle_.nBarriers + index_;
}

template <typename Coop>
NCCL_DEVICE_INLINE void ncclLsaBarrierSession<Coop>::arrive(Coop, cuda::memory_order order) {
  const cuda::memory_order release = tutti::device::ReleasePart(order);
  coop_.sync();
  if (multimem_) {
    if (coop_.thread_rank() == 0)
      tutti::device::MultimemIncrement(
          Sum(ncclGetResourceBufferMultimemPointer(comm_, handle_.bufHandle, mm_handle_)), release);
    return;
  }
  const int others = team_.nRanks - 1;
  if (coop_.thread_rank() < others) tutti::device::FenceBeforeFlags(release);
  for (int i = coop_.thread_rank(); i < others; i += coop_.size()) {
    const int peer = i < team_.rank ? i : i + 1;
    tutti::device::StoreFlag(Cell(peer, team_.rank), epoch_ + 1, release);
  }
}

template <typename Coop>
NCCL_DEVICE_INLINE bool ncclLsaBarrierSession<Coop>::WaitFor(uint32_t* word, uint32_t epoch,
                                                             cuda::memory_order order,
                                                             tutti::device::WaitRounds* rounds) {
  while (!tutti::device::HasReached(tutti::device::LoadFlag(word, order), epoch)) {
    if (!rounds->Another()) return false;
  }
  return true;
}

template <typename Coop>
NCCL_DEVICE_INLINE ncclResult_t
ncclLsaBarrierSession<Coop>::Wait(cuda::memory_order order, tutti::device::WaitRounds rounds) {
  const cuda::memory_order acquire = tutti::device::AcquirePart(order);
  bool met = true;
  if (multimem_) {
    epoch_ += static_cast<uint32_t>(team_.nRanks);
    if (coop_.thread_rank() == 0)
      met = WaitFor(Sum(ncclGetResourceBufferLocalPointer(comm_, handle_.bufHandle)), epoch_,
                    acquire, &rounds);
  } else {
    epoch_ += 1;
    for (int i = coop_.thread_rank(); i < team_.nRanks - 1 && met; i += coop_.size()) {
      const int peer = i < team_.rank ? i : i + 1;
      met = WaitFor(Cell(team_.rank, peer), epoch_, acquire, &rounds);
    }
  }
  coop_.sync();
  return met ? ncclSuccess : ncclTimeout;
}

template <typename Coop>
NCCL_DEVICE_INLINE void ncclLsaBarrierSession<Coop>::wait(Coop, cuda::memory_order order) {
  Wait(order, tutti::device::WaitRounds(comm_.abortFlag));
}

template <typename Coop>
NCCL_DEVICE_INLINE ncclResult_t ncclLsaBarrierSession<Coop>::wait(Coop, cuda::memory_order order,
                                                                  uint64_t timeoutCycles) {
  return Wait(order, tutti::device::WaitRounds(comm_.abortFlag, timeoutCycles));
}

template <typename Coop>
NCCL_DEVICE_INLINE void ncclLsaBarrierSession<Coop>::sync(Coop coop, cuda::memory_order order) {
  arrive(coop, order);
  wait(coop, order);
}

template <typename Coop>
NCCL_DEVICE_INLINE ncclResult_t ncclLsaBarrierSession<Coop>::sync(Coop coop,
                                                                  cuda::memory_order order,
                                                                  uint64_t timeoutCycles) {
  arrive(coop, order);
  return wait(coop, order, timeoutCycles);
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_LSA_BARRIER__FUNCS_H_
