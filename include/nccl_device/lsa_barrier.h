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

// Fills *outReq so that ncclDevCommCreate, which finds it in its list of resource requirements,
// gives `team` nBarriers barriers and stores their handle. *outHandle must live until then.
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
// has a session on it at a time, and each rank makes the same number of arrivals; how many kernels
// and sessions they are spread over does not matter.
//
// An order with release makes what the group did before arrive() visible to those who acquire; one
// with acquire makes visible what the others released. Relaxed is a meeting and no more.
template <typename Coop>
struct ncclLsaBarrierSession {
 public:
  // `multimem` chooses multicast memory, which the team's ranks must all do or none. It means
  // nothing where kernels have none, as on hosts.
  NCCL_DEVICE_INLINE ncclLsaBarrierSession(Coop coop, const ncclDevComm& comm, ncclTeam team,
                                           ncclLsaBarrierHandle handle, uint32_t index,
                                           bool multimem = false, ncclMultimemHandle mmHandle = {});
  // Barrier `index` of those that lsaBarrierCount asked for.
  NCCL_DEVICE_INLINE ncclLsaBarrierSession(Coop coop, const ncclDevComm& comm, ncclTeamTagLsa,
                                           uint32_t index, bool multimem = false);
  ncclLsaBarrierSession(const ncclLsaBarrierSession&) = delete;
  // Keeps where the session ended for the next one.
  NCCL_DEVICE_INLINE ~ncclLsaBarrierSession();

  // Says that the group has come; does not wait.
  NCCL_DEVICE_INLINE void arrive(Coop coop, cuda::memory_order order);
  // Waits until the group of every rank has arrived as often as this one. Each arrive() is followed
  // by one wait(). Ends early when the communicator is aborted.
  NCCL_DEVICE_INLINE void wait(Coop coop, cuda::memory_order order);
  // arrive(), then wait().
  NCCL_DEVICE_INLINE void sync(Coop coop, cuda::memory_order order);
  // The same, for `timeoutCycles` cycles of the GPU's clock, or nanoseconds of the host's, at most.
  // Return ncclTimeout to the threads that gave up waiting for a rank, or were aborted, and
  // ncclSuccess to the others. The barrier stays usable: the rank that was missing will find the
  // others at it.
  NCCL_DEVICE_INLINE ncclResult_t wait(Coop coop, cuda::memory_order order, uint64_t timeoutCycles);
  NCCL_DEVICE_INLINE ncclResult_t sync(Coop coop, cuda::memory_order order, uint64_t timeoutCycles);

 private:
  // The word that keeps the epoch between sessions: the number of arrivals of this rank so far, or,
  // with multicast memory, of all ranks.
  NCCL_DEVICE_INLINE uint32_t* KeptEpoch() const;
  // The word on rank `owner` by which rank `from` tells its epoch.
  NCCL_DEVICE_INLINE uint32_t* Cell(int owner, int from) const;
  // The word that counts all ranks' arrivals, by address `state` of the barriers' buffer.
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
