// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/lsa_barrier.h: barriers between kernels of ranks that reach one another's memory.

#ifndef NCCL_DEVICE_LSA_BARRIER_H_
#define NCCL_DEVICE_LSA_BARRIER_H_

#include "nccl_device/ptr.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Fills *outReq, an element of the list of resource requirements, by which ncclDevCommCreate gives
// `team` nBarriers barriers and stores their handle. *outHandle must live until then.
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                             ncclLsaBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq);
ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                              ncclLsaBarrierHandle_t* outHandle,
                                              ncclDevResourceRequirements_t* outReq);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#if TUTTI_DEVICE_API

// Barrier `index` of a team, for as long as the session lives. One group of threads of each rank
// has a session on a barrier at a time, and each rank makes the same number of arrivals, in any
// number of kernels and sessions.
//
// A release order makes the group's work before arrive() visible to ranks that acquire; an acquire
// order makes visible the work that other ranks released. Relaxed is a meeting and no more.
template <typename Coop>
struct ncclLsaBarrierSession {
 public:
  // `multimem` chooses multicast memory, for all ranks of the team or for none. The choice is
  // ignored where kernels have no multicast memory, as on hosts.
  NCCL_DEVICE_INLINE ncclLsaBarrierSession(Coop coop, const ncclDevComm& comm, ncclTeam team,
                                           ncclLsaBarrierHandle handle, uint32_t index,
                                           bool multimem = false, ncclMultimemHandle mmHandle = {});
  // Barrier `index` of lsaBarrierCount.
  NCCL_DEVICE_INLINE ncclLsaBarrierSession(Coop coop, const ncclDevComm& comm, ncclTeamTagLsa,
                                           uint32_t index, bool multimem = false);
  ncclLsaBarrierSession(const ncclLsaBarrierSession&) = delete;
  // Keeps the epoch of the session for the next session.
  NCCL_DEVICE_INLINE ~ncclLsaBarrierSession();

  // Announces the group's arrival, and does not wait.
  NCCL_DEVICE_INLINE void arrive(Coop coop, cuda::memory_order order);
  // Waits until the group of every rank has arrived as often as the caller's. Each arrive() is
  // followed by a wait(). Ends early when the communicator is aborted.
  NCCL_DEVICE_INLINE void wait(Coop coop, cuda::memory_order order);
  // arrive(), then wait().
  NCCL_DEVICE_INLINE void sync(Coop coop, cuda::memory_order order);
  // The same, for `timeoutCycles` cycles of the GPU's clock, or nanoseconds of the host's, at most.
  // Return ncclTimeout to threads that gave up waiting for a rank, or were aborted, and ncclSuccess
  // to the remaining threads. The barrier stays usable: the missing rank will find the arrivals of
  // the team.
  NCCL_DEVICE_INLINE ncclResult_t wait(Coop coop, cuda::memory_order order, uint64_t timeoutCycles);
  NCCL_DEVICE_INLINE ncclResult_t sync(Coop coop, cuda::memory_order order, uint64_t timeoutCycles);

 private:
  // The word that keeps the epoch between sessions: the number of arrivals of this rank, or, with
  // multicast memory, of all ranks.
  NCCL_DEVICE_INLINE uint32_t* KeptEpoch() const;
  // The word on rank `owner` by which rank `from` tells its epoch.
  NCCL_DEVICE_INLINE uint32_t* Cell(int owner, int from) const;
  // The word with the count of all ranks' arrivals, by address `state` of the barriers' buffer.
  NCCL_DEVICE_INLINE uint32_t* Sum(void* state) const;
  NCCL_DEVICE_INLINE ncclResult_t Wait(cuda::memory_order order, tutti::device::WaitRounds rounds);
  // Waits for one word to come to `epoch`.
  NCCL_DEVICE_INLINE static bool WaitFor(uint32_t* word, uint32_t epoch, cuda::memory_order order,
                                         tutti::device::WaitRounds* rounds);

  Coop coop_;
  const ncclDevComm& comm_;
  ncclTeam team_;
  ncclLsaBarrierHandle handle_;
  uint32_t index_;
  bool multimem_;
  ncclMultimemHandle mm_handle_;
  uint32_t epoch_;
};

#endif  // TUTTI_DEVICE_API

#include "nccl_device/impl/lsa_barrier__funcs.h"

#endif  // NCCL_DEVICE_LSA_BARRIER_H_
