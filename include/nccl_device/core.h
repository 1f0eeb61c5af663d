// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/core.h: the requirements of a device communicator, the host functions that make one,
// teams of ranks, and addresses of windows' memory for a kernel. Names, values and layouts are NCCL
// 2.30.7's. Valid C.
//
// Words. A kernel is code that runs on the rank's device: a CUDA kernel, or, on a host, a function
// for tuttiLaunchHost (tutti/host_kernel.h). The LSA team of a rank (load/store accessible) is the
// consecutive ranks into whose windows its kernels can load and store. A rail consists of the ranks
// with the same place in their LSA teams.
//
// Threads and errors of host functions: as in nccl.h.

#ifndef NCCL_DEVICE_CORE_H_
#define NCCL_DEVICE_CORE_H_

#include "nccl.h"
#include "nccl_device/utility.h"

// -------------------------------------------------------------------------------------------------
// Types
// -------------------------------------------------------------------------------------------------

// The handle by which a kernel talks to other ranks; passed to the kernel by value. Programs may
// read rank, nRanks, lsaRank, lsaSize, ginContextCount and the handles of barriers
// (nccl_device/impl/comm__types.h).
typedef struct ncclDevComm ncclDevComm_t;

// The record of a window in memory that kernels read; an ncclWindow_t points at the record.
typedef struct ncclWindow_vidmem ncclWindow_vidmem_t;

// Handles of the parts of a device communicator; each is described beside its users.
typedef struct ncclMultimemHandle ncclMultimemHandle_t;
typedef struct ncclLsaBarrierHandle ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle ncclLLA2AHandle_t;

// Where a buffer begins in the resource window of a device communicator, in units of 128 bytes.
typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;

// Numbers of signals and counters of device-initiated networking (GIN).
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;
typedef struct {
  uint64_t opaque[2];
} ncclGinRequest_t;

// `nRanks` ranks at distances of `stride` in the world; the caller is number `rank` of them. Rank i
// of the team is rank (i - rank) * stride behind the caller in the world.
struct ncclTeam {
  int nRanks, rank, stride;
};
typedef struct ncclTeam ncclTeam_t;

#ifdef __cplusplus
// Choose a team by overload.
struct ncclTeamTagWorld {};
struct ncclTeamTagLsa {};
struct ncclTeamTagRail {};
#endif

struct ncclMultimemHandle {
  void* mcBasePtr;  // Null where the team has no multicast memory.
};

// -------------------------------------------------------------------------------------------------
// Properties of a communicator for kernels
// -------------------------------------------------------------------------------------------------

typedef enum {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,  // 1 is not used.
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4
} ncclGinType_t;

// Start from NCCL_COMM_PROPERTIES_INITIALIZER.
typedef struct ncclCommProperties {
  // Filled by the initializer.
  size_t size;
  unsigned int magic;
  unsigned int version;
  // Filled by the call.
  int rank;
  int nRanks;
  int cudaDev;                  // -1: a host rank.
  int nvmlDev;                  // -1: not known.
  bool deviceApiSupport;        // Whether ncclDevCommCreate works.
  bool multimemSupport;         // Whether kernels can use multicast memory.
  ncclGinType_t ginType;        // how kernels reach the network of all ranks
  int nLsaTeams;                // 1: kernels reach the windows of all ranks by load and store.
  bool hostRmaSupport;          // Whether ncclPutSignal works.
  ncclGinType_t railedGinType;  // How kernels reach the network, ranks of their own rail only.
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER                                                       \
  {                                                                                            \
    sizeof(ncclCommProperties_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, 0, 0, 0, 0, false, false, \
        NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE                                       \
  }

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Fills *props, up to props->size bytes.
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);
ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

// -------------------------------------------------------------------------------------------------
// Device communicators
// -------------------------------------------------------------------------------------------------

// Says which ranks GIN joins.
typedef enum {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2
} ncclGinConnectionType_t;

typedef struct ncclDevResourceRequirements ncclDevResourceRequirements_t;
typedef struct ncclTeamRequirements ncclTeamRequirements_t;

// A piece of the resource window, and signals and counters of the caller's own. Elements form a
// list. ncclDevCommCreate stores where the piece lies and the first numbers; a null `out` is not
// stored.
struct ncclDevResourceRequirements {
  ncclDevResourceRequirements_t* next;
  size_t bufferSize;   // Bytes, the same on all ranks. They are zero at first.
  size_t bufferAlign;  // A power of two, or 0. At least 128 is given.
  ncclDevResourceHandle_t* outBufferHandle;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinSignal_t* outGinSignalStart;
  ncclGinCounter_t* outGinCounterStart;
};

// Multicast memory for a team. Elements form a list.
struct ncclTeamRequirements {
  ncclTeamRequirements_t* next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t* outMultimemHandle;
};

// Describes the kernels' needs. All ranks ask for the same. Start from
// NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER.
typedef struct ncclDevCommRequirements {
  // Filled by the initializer.
  size_t size;
  unsigned int magic;
  unsigned int version;
  // For the caller to set.
  ncclDevResourceRequirements_t* resourceRequirementsList;
  ncclTeamRequirements_t* teamRequirementsList;
  bool lsaMultimem;         // Multicast memory for the LSA team.
  int barrierCount;         // Barriers of ncclBarrierSession.
  int lsaBarrierCount;      // Barriers of ncclLsaBarrierSession with ncclTeamTagLsa.
  int railGinBarrierCount;  // Barriers of ncclGinBarrierSession with ncclTeamTagRail.
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount;  // Kept for NCCL's sake; see nccl_device/ll_a2a.h.
  bool ginForceEnable;                        // The older spelling of ginConnectionType FULL.
  int ginContextCount;                        // a wish; the device communicator has the number
  int ginSignalCount;                         // Signals of the caller's own, numbered from 0.
  int ginCounterCount;                        // Counters of the caller's own, numbered from 0.
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;  // contexts shared with no other device communicator
  int ginQueueDepth;          // 0: the library chooses.
  int ginTrafficClass;        // NCCL_CONFIG_UNDEF_INT: the library chooses.
  int worldGinBarrierCount;   // Barriers of ncclGinBarrierSession with ncclTeamTagWorld.
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
} ncclDevCommRequirements_t;

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER                                                     \
  {                                                                                                \
    sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, NULL, NULL, false, 0, 0, \
        0, 0, 0, false, 4 /* ginContextCount */, 0, 0, NCCL_GIN_CONNECTION_NONE, false, 0,         \
        NCCL_CONFIG_UNDEF_INT, 0, true, true                                                       \
  }

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#ifdef __cplusplus
extern "C" {
#endif

// Makes a device communicator and stores it in *outDevComm, together with the `out` fields of the
// lists, which are read before the call returns. A joint call: all ranks of `comm` make the call
// with equal requirements. Requirements may have the form of any release since 2.28. From 2.29 on
// `size` tells the form; a `magic` of 0 means that the fields were set from zero, as programs of
// 2.28 did. ncclInvalidUsage for ranks without symmetric memory and for an unknown magic or
// version; ncclInvalidArgument for needs that the ranks cannot serve (GIN, multicast memory).
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                               ncclDevComm_t* outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                                ncclDevComm_t* outDevComm);

// Frees a device communicator of ncclDevCommCreate. A joint call; no kernel may be using the device
// communicator.
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm);

// -------------------------------------------------------------------------------------------------
// Addresses of a window's memory, for kernels to be given as arguments
// -------------------------------------------------------------------------------------------------

// Stores the address by which kernels of this rank reach byte `offset` of the window on rank
// `lsaRank` of the LSA team. ncclInvalidArgument beyond the window or the team.
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                     void** outPtr);
ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                      void** outPtr);
// The same for rank `peer` of the communicator. Stores null for a rank of another LSA team.
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** outPtr);
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** outPtr);
// The same for the multicast memory of the LSA team, and of the team of a handle. The first stores
// null without multicast memory.
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** outPtr);
ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                          ncclMultimemHandle_t multimem, void** outPtr);
ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                           ncclMultimemHandle_t multimem, void** outPtr);

// -------------------------------------------------------------------------------------------------
// Teams
// -------------------------------------------------------------------------------------------------

// Return all ranks, the LSA team, and the rail of this rank. An invalid handle has a team of no
// rank. Kernels have the same functions with an ncclDevComm in place of `comm`
// (nccl_device/impl/core__funcs.h).
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t pncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t pncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t pncclTeamRail(ncclComm_t comm);
// Return the rank in the world, or in the caller's LSA team, of rank `rank` of `team`.
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

#ifdef __cplusplus
}  // extern "C"
#endif
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

// Returns the rank in team `a` of rank `bPeer` of team `b`. The rank must be a member of `a`.
NCCL_EXTERN_C NCCL_HOST_DEVICE_INLINE int ncclTeamRankToTeam(ncclTeam_t a, ncclTeam_t b,
                                                             int bPeer) {
  return a.rank + (bPeer - b.rank) * b.stride / a.stride;
}

// Returns whether rank `bPeer` of team `b` is a member of team `a`.
NCCL_EXTERN_C NCCL_HOST_DEVICE_INLINE bool ncclTeamRankIsMember(ncclTeam_t a, ncclTeam_t b,
                                                                int bPeer) {
  const int distance = (bPeer - b.rank) * b.stride;
  const int rank = a.rank + distance / a.stride;
  return distance % a.stride == 0 && rank >= 0 && rank < a.nRanks;
}

// Return the `innerSize` neighbouring ranks of `parent` around the caller, and the ranks with the
// caller's place among such neighbours. innerSize divides parent.nRanks.
NCCL_EXTERN_C NCCL_HOST_DEVICE_INLINE ncclTeam_t ncclTeamInnerFactor(ncclTeam_t parent,
                                                                     int innerSize) {
  const ncclTeam_t team = {innerSize, parent.rank % innerSize, parent.stride};
  return team;
}
NCCL_EXTERN_C NCCL_HOST_DEVICE_INLINE ncclTeam_t ncclTeamOuterFactor(ncclTeam_t parent,
                                                                     int innerSize) {
  const ncclTeam_t team = {parent.nRanks / innerSize, parent.rank / innerSize,
                           parent.stride * innerSize};
  return team;
}

// Returns the `index`-th rank of `parent` outside `subset`, whose ranks are all in `parent`. index
// < parent.nRanks - subset.nRanks.
//
//   parent    0 1 2 3 4 5 6 7 8 9      subset: first = 2, step = 3, three members
//   subset        x     x     x        ranks 0 1 come before it, two lie in each gap, 9 after it
NCCL_EXTERN_C NCCL_HOST_DEVICE_INLINE int ncclTeamRankInDifference(ncclTeam_t parent,
                                                                   ncclTeam_t subset, int index) {
  int step = subset.stride / parent.stride;
  int first = parent.rank - subset.rank * step;
  if (step < 0) {
    first += (subset.nRanks - 1) * step;
    step = -step;
  }
  if (index < first) return index;
  const int gap = step - 1;
  const int past_first = index - first;
  const int in_gaps = (subset.nRanks - 1) * gap;
  // A member of `subset` lies before every passed gap, and before the gap of the result.
  const int members = past_first < in_gaps ? past_first / gap + 1 : subset.nRanks;
  return index + members;
}

// Returns where a buffer begins in the resource window, in bytes.
NCCL_EXTERN_C NCCL_HOST_DEVICE_INLINE size_t
ncclGetResourceBufferOffset(ncclDevResourceHandle_t h) {
  return (size_t)h * 128;
}

#endif  // NCCL_DEVICE_CORE_H_
