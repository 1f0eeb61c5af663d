// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/ll_a2a.h: all-to-all exchanges of small elements between kernels of one LSA team, by
// the LL protocol: every element travels in units of 16 bytes with their own flag, and a receiver
// waits for the element alone.

#ifndef NCCL_DEVICE_LL_A2A_H_
#define NCCL_DEVICE_LL_A2A_H_

#include "nccl_device/ptr.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Returns the slots for maxElts elements of maxEltSize bytes: one for every 8 bytes.
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
int pncclLLA2ACalcSlots(int maxElts, int maxEltSize);

// Fills *outReq, by which ncclDevCommCreate reserves nBlocks exchanges at a time, of nSlots slots
// each, and stores their handle. *outHandle must live until then.
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                        ncclDevResourceRequirements_t* outReq);
ncclResult_t pncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                         ncclDevResourceRequirements_t* outReq);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#if TUTTI_DEVICE_API

// Exchanges of a team in room number `block`, for the life of the session. One group of threads of
// each rank has a session in a room at a time. They go in epochs. In an epoch any thread may send,
// by slot, to any rank's group, and receive elements sent to this rank. Element `elt` lies in slot
// elt, and an element of more than 8 bytes also in elt + maxElts, elt + 2 * maxElts, …; in an epoch
// each slot of a rank is written at most once.
template <typename Coop>
struct ncclLLA2ASession {
 public:
  NCCL_DEVICE_INLINE ncclLLA2ASession(Coop coop, const ncclDevComm& comm, ncclTeam team,
                                      ncclLLA2AHandle handle, uint32_t block, int maxElts,
                                      bool multimem = false, ncclMultimemHandle mmHandle = {});
  ncclLLA2ASession(const ncclLLA2ASession&) = delete;
  // Keeps the epoch for the next session. REQUIRES: an epoch with an element sent has ended.
  NCCL_DEVICE_INLINE ~ncclLLA2ASession();

  // Writes `data` as element `elt` of rank `peer` of the team, which may be this rank.
  template <typename T>
  NCCL_DEVICE_INLINE void send(int peer, int elt, T data);
  // The same on all ranks of the team.
  template <typename T>
  NCCL_DEVICE_INLINE void bcast(int elt, T data);

  // Returns element `elt` of this rank, once a rank has sent the element in this epoch. Zeros where
  // the communicator was aborted.
  template <typename T>
  NCCL_DEVICE_INLINE T recv(int elt);
  // Stores the eltCount elements eltStart, eltStart + eltStride, … in `vals`, and waits for all of
  // them at once. MinEltCount <= eltCount <= MaxEltCount.
  template <int MinEltCount, int MaxEltCount, typename T>
  NCCL_DEVICE_INLINE void recvUnrolled(int eltStart, int eltCount, int eltStride,
                                       T (&vals)[MaxEltCount]);
  // Returns reduce(… reduce(toAcc(e0), toAcc(e1)) …, toAcc(en)) of the same elements, of type Elt,
  // in this order. At least one element; Unroll elements are waited for at once.
  template <int Unroll, typename Elt, typename ToAcc, typename Reduce>
  NCCL_DEVICE_INLINE auto recvReduce(int eltStart, int eltCount, int eltStride, ToAcc toAcc,
                                     Reduce reduce) -> decltype(toAcc(Elt()));

  // Ends the epoch. Since the last epoch the group must have sent an element to every rank of the
  // team, and received an element from every rank.
  NCCL_DEVICE_INLINE void endEpoch(Coop coop);

 private:
  // Returns the room's first line, by address `state` of the exchanges' buffer.
  NCCL_DEVICE_INLINE tutti::device::LLLine* Room(void* state) const;
  // Returns the slots of the epoch. Epochs take turns with two sets of slots.
  NCCL_DEVICE_INLINE tutti::device::LLLine* Slots(void* state) const;
  NCCL_DEVICE_INLINE void* LocalState() const;
  NCCL_DEVICE_INLINE void* StateOf(int peer) const;
  template <typename T>
  NCCL_DEVICE_INLINE void Write(tutti::device::LLLine* slot, const T& data);
  // Reads the lines of an element. Returns whether all are of this epoch.
  template <typename T>
  NCCL_DEVICE_INLINE bool Read(tutti::device::LLLine* slot, T* data) const;

  Coop coop_;
  const ncclDevComm& comm_;
  ncclTeam team_;
  ncclLLA2AHandle handle_;
  uint32_t block_;
  int pitch_;  // How many slots apart the lines of an element lie.
  bool multimem_;
  ncclMultimemHandle mm_handle_;
  uint32_t epoch_;
};

#endif  // TUTTI_DEVICE_API

#include "nccl_device/impl/ll_a2a__funcs.h"

#endif  // NCCL_DEVICE_LL_A2A_H_
