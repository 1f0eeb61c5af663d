// SPDX-License-Identifier: Apache-2.0
//
// How an LL all-to-all works. Read by nccl_device/ll_a2a.h.
//
// A room is a line for the epoch between sessions, and two sets of slots, for even and odd epochs.
// A rank may write into a set again in epoch e + 2: by then the rank has received an element of
// epoch e + 1 from the owner of the slots, who had read the elements of epoch e before. The epoch
// is the flag of every line. Epochs 0 and 1 are never used, because fresh memory holds 0. Before
// the count wraps around, both sets are cleared, and no old line looks new.

#ifndef NCCL_DEVICE_IMPL_LL_A2A__FUNCS_H_
#define NCCL_DEVICE_IMPL_LL_A2A__FUNCS_H_

#include "nccl_device/ll_a2a.h"

#if TUTTI_DEVICE_API

namespace tutti {
namespace device {

constexpr uint32_t kFirstLLEpoch = 2;

// An element as the halves of its lines.
template <typename T>
union LLElement {
  static constexpr int kLines = DivideUp(static_cast<int>(sizeof(T)), 8);
  NCCL_DEVICE_INLINE LLElement() {
    for (int i = 0; i < kLines; ++i) half[i][0] = half[i][1] = 0;
  }
  uint32_t half[kLines][2];
  T whole;
};

}  // namespace device
}  // namespace tutti

template <typename Coop>
NCCL_DEVICE_INLINE ncclLLA2ASession<Coop>::ncclLLA2ASession(Coop coop, const ncclDevComm& comm,
                                                            ncclTeam team, ncclLLA2AHandle handle,
                                                            uint32_t block, int maxElts,
                                                            bool multimem,
                                                            ncclMultimemHandle mmHandle)
    : coop_(coop),
      comm_(comm),
      team_(team),
      handle_(handle),
      block_(block),
      pitch_(maxElts),
      multimem_(multimem && TUTTI_DEVICE_HAS_MULTIMEM != 0),
      mm_handle_(mmHandle),
      epoch_(Room(LocalState())->data_low + tutti::device::kFirstLLEpoch) {}

template <typename Coop>
NCCL_DEVICE_INLINE ncclLLA2ASession<Coop>::~ncclLLA2ASession() {
  // In a session without an epoch other threads may still be reading the word.
  uint32_t* const kept = &Room(LocalState())->data_low;
  const uint32_t epoch = epoch_ - tutti::device::kFirstLLEpoch;
  if (coop_.thread_rank() == 0 && *kept != epoch) *kept = epoch;
  coop_.sync();
}

template <typename Coop>
NCCL_DEVICE_INLINE tutti::device::LLLine* ncclLLA2ASession<Coop>::Room(void* state) const {
  return static_cast<tutti::device::LLLine*>(state) + block_ * (1 + 2 * handle_.nSlots);
}
template <typename Coop>
NCCL_DEVICE_INLINE tutti::device::LLLine* ncclLLA2ASession<Coop>::Slots(void* state) const {
  return Room(state) + 1 + (epoch_ % 2) * handle_.nSlots;
}
template <typename Coop>
NCCL_DEVICE_INLINE void* ncclLLA2ASession<Coop>::LocalState() const {
  return ncclGetResourceBufferLocalPointer(comm_, handle_.bufHandle);
}
template <typename Coop>
NCCL_DEVICE_INLINE void* ncclLLA2ASession<Coop>::StateOf(int peer) const {
  return ncclGetResourceBufferPeerPointer(comm_, handle_.bufHandle, team_, peer);
}

template <typename Coop>
template <typename T>
NCCL_DEVICE_INLINE void ncclLLA2ASession<Coop>::Write(tutti::device::LLLine* slot, const T& data) {
  tutti::device::LLElement<T> element;
  element.whole = data;
  for (int i = 0; i < element.kLines; ++i)
    tutti::device::StoreLine(slot + i * pitch_, element.half[i][0], element.half[i][1], epoch_);
}

template <typename Coop>
template <typename T>
NCCL_DEVICE_INLINE bool ncclLLA2ASession<Coop>::Read(tutti::device::LLLine* slot, T* data) const {
  tutti::device::LLElement<T> element;
  bool here = true;
  for (int i = 0; i < element.kLines; ++i) {
    const tutti::device::LLLine line = tutti::device::LoadLine(slot + i * pitch_);
    here &= line.epoch_low == epoch_ && line.epoch_high == epoch_;
    element.half[i][0] = line.data_low;
    element.half[i][1] = line.data_high;
  }
  *data = element.whole;
  return here;
}

template <typename Coop>
template <typename T>
NCCL_DEVICE_INLINE void ncclLLA2ASession<Coop>::send(int peer, int elt, T data) {
  Write(Slots(StateOf(peer)) + elt, data);
}

template <typename Coop>
template <typename T>
NCCL_DEVICE_INLINE void ncclLLA2ASession<Coop>::bcast(int elt, T data) {
  if (multimem_) {
    Write(Slots(ncclGetResourceBufferMultimemPointer(comm_, handle_.bufHandle, mm_handle_)) + elt,
          data);
    return;
  }
  // The order begins at the next rank, because all ranks should not write to one rank at a time.
  for (int i = 1; i <= team_.nRanks; ++i) {
    const int peer = team_.rank + i < team_.nRanks ? team_.rank + i : team_.rank + i - team_.nRanks;
    send(peer, elt, data);
  }
}

template <typename Coop>
template <int MinEltCount, int MaxEltCount, typename T>
NCCL_DEVICE_INLINE void ncclLLA2ASession<Coop>::recvUnrolled(int eltStart, int eltCount,
                                                             int eltStride,
                                                             T (&vals)[MaxEltCount]) {
  tutti::device::LLLine* const first = Slots(LocalState()) + eltStart;
  tutti::device::WaitRounds rounds(comm_.abortFlag);
  while (true) {
    bool here = true;
#if NCCL_CHECK_CUDACC
#pragma unroll
#endif
    for (int i = 0; i < MaxEltCount; ++i) {
      if (i < MinEltCount || i < eltCount) here &= Read(first + i * eltStride, &vals[i]);
    }
    if (here) return;
    if (!rounds.Another()) break;
  }
  for (int i = 0; i < MaxEltCount; ++i) {
    if (i < eltCount) vals[i] = T();
  }
}

template <typename Coop>
template <typename T>
NCCL_DEVICE_INLINE T ncclLLA2ASession<Coop>::recv(int elt) {
  T value[1];
  recvUnrolled<1, 1>(elt, 1, 0, value);
  return value[0];
}

template <typename Coop>
template <int Unroll, typename Elt, typename ToAcc, typename Reduce>
NCCL_DEVICE_INLINE auto ncclLLA2ASession<Coop>::recvReduce(int eltStart, int eltCount,
                                                           int eltStride, ToAcc toAcc,
                                                           Reduce reduce)
    -> decltype(toAcc(Elt())) {
  Elt some[Unroll];
  decltype(toAcc(Elt())) sum = {};
  for (int done = 0; done < eltCount; done += Unroll) {
    const int count = eltCount - done < Unroll ? eltCount - done : Unroll;
    if (count == Unroll)
      recvUnrolled<Unroll, Unroll>(eltStart + done * eltStride, count, eltStride, some);
    else
      recvUnrolled<1, Unroll>(eltStart + done * eltStride, count, eltStride, some);
#if NCCL_CHECK_CUDACC
#pragma unroll
#endif
    for (int i = 0; i < Unroll; ++i) {
      if (i < count) sum = done + i == 0 ? toAcc(some[i]) : reduce(sum, toAcc(some[i]));
    }
  }
  return sum;
}

template <typename Coop>
NCCL_DEVICE_INLINE void ncclLLA2ASession<Coop>::endEpoch(Coop) {
  coop_.sync();
  constexpr uint32_t kLastEpoch = UINT32_MAX;
  if (epoch_ >= kLastEpoch - 1) {
    // No rank writes here before epoch_ + 2, which needs this rank's next epoch.
    tutti::device::LLLine* const slots = Slots(LocalState());
    for (uint32_t i = static_cast<uint32_t>(coop_.thread_rank()); i < handle_.nSlots;
         i += static_cast<uint32_t>(coop_.size()))
      tutti::device::StoreLine(slots + i, 0, 0, 0);
    coop_.sync();
  }
  epoch_ = epoch_ == kLastEpoch ? tutti::device::kFirstLLEpoch : epoch_ + 1;
}

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_IMPL_LL_A2A__FUNCS_H_
