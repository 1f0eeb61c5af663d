// SPDX-License-Identifier: Apache-2.0
//
// nccl.h: the C interface of Tutti. Names, values and layouts are those of NCCL 2.30.7, and a
// program written for NCCL compiles and links with Tutti unchanged. tutti/tutti.h has Tutti's
// additions.
//
// Words
//   A communicator joins `nranks` ranks, and each rank owns one ncclComm_t. A rank is a device: a
//   GPU, or, on a machine without GPUs (or with TUTTI_BACKEND=host), a host device: a set of
//   threads working on host memory. Buffers named `buff` are memory of the rank's device: host
//   pointers for a host rank. An ncclDataType_t gives the type of the elements. Buffers need no
//   alignment, but operations on aligned buffers are faster. Counts are numbers of ELEMENTS; sizes
//   and offsets are BYTES. Counts and buffers that cannot lie in an address space (2^48 bytes, or
//   an end beyond the last address) are ncclInvalidArgument.
//
// Streams
//   Operations are queued on a stream and run in the order of the stream. A host rank takes the
//   null stream or a stream from tuttiStreamCreate. With the null stream a host rank's operation is
//   DONE when the call returns, or, inside a group, when the outermost ncclGroupEnd returns. With
//   any other stream the operation is done when the stream reaches it. Buffers must stay valid, and
//   sources unchanged, until then.
//
// Threads
//   Functions may be called from any thread. One thread at a time uses a communicator; only
//   ncclCommAbort, ncclCommRevoke, ncclCommGetAsyncError, ncclGetLastError and the queries (Count,
//   UserRank, CuDevice) may run beside another call, Destroy and Abort among them: they answer, or
//   are refused with ncclInvalidArgument after the communicator was freed. Group nesting belongs to
//   the calling thread. All ranks of a communicator issue its collectives in the same order. A
//   thread that drives several ranks wraps the calls of one collective in ncclGroupStart and
//   ncclGroupEnd; without a group the first call would wait for the rest. A thread cancelled in a
//   call (pthread_cancel) ends the call first.
//
// Processes
//   After fork() a child makes communicators of its own. In the child, calls on the parent's
//   communicators are refused with ncclInvalidUsage.
//
// Errors
//   Every function that can fail returns an ncclResult_t. ncclGetLastError then holds a sentence
//   with the failure, its place, and advice. ncclInvalidArgument is a bad value in an argument,
//   ncclInvalidUsage a call that is wrong in this state or not implemented on this kind of rank.
//   Results other than ncclSuccess and ncclInProgress, if they come from a peer or the network,
//   leave the communicator fit only for Abort, Revoke, Shrink and queries. With a non-blocking
//   communicator (config.blocking = 0) calls may return ncclInProgress: the caller polls
//   ncclCommGetAsyncError until the state changes before it uses the communicator again.
//
// Each function has a twin with the prefix `pnccl`, by which a profiler can define the plain name
// and call the twin.

#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

// With CUDA headers in the include path their types are used. Without them (or with TUTTI_NO_CUDA
// defined) the stream type is declared here exactly as CUDA declares it, and both spellings may
// meet in one program.
#if !defined(TUTTI_NO_CUDA) && defined(__has_include)
#if __has_include(<cuda_runtime_api.h>)
#define TUTTI_HAVE_CUDA_HEADERS 1
#endif
#endif

#ifdef TUTTI_HAVE_CUDA_HEADERS
#ifdef __cplusplus
#include <cuda_runtime.h>
#else
#include <cuda_runtime_api.h>
#endif
#if __has_include(<cuda_fp16.h>)
#include <cuda_fp16.h>
#endif
#if __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#endif
#else
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""

// The version as a number, comparable with < and >. Releases up to 2.8 used a narrower formula.
#define NCCL_VERSION_CODE 23007
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

// -------------------------------------------------------------------------------------------------
// Types and constants
// -------------------------------------------------------------------------------------------------

// One rank's end of a communicator. Created by the CommInit functions, Split, Shrink and Grow;
// freed by Destroy or Abort.
typedef struct ncclComm* ncclComm_t;
#define NCCL_COMM_NULL NULL

// One rank's end of a window: memory that the other ranks may address. See ncclCommWindowRegister.
typedef struct ncclWindow_vidmem* ncclWindow_t;

// The way for ranks to find each other: the address of a root and a random key of the job. A
// program passes the bytes on unchanged by any means, and keeps them secret, because their holder
// can join.
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,  // A CUDA call failed.
  ncclSystemError = 2,         // The operating system refused something: memory, a file, a socket.
  ncclInternalError = 3,       // A fault in the library itself.
  ncclInvalidArgument = 4,     // An argument has an invalid value.
  ncclInvalidUsage = 5,        // Not allowed in this state, or not implemented for this rank.
  ncclRemoteError = 6,         // Another rank failed, died, or could not be reached.
  ncclInProgress = 7,          // Not an error: a non-blocking communicator is still at work.
  ncclTimeout = 8,             // A deadline passed.
  ncclNumResults = 9
} ncclResult_t;

// A config field with this value has not been set: the library chooses.
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

// Marks a config as made by NCCL_CONFIG_INITIALIZER. Not for use by programs.
#define NCCL_API_MAGIC 0xcafebeef

// Color for ncclCommSplit: this rank joins no new communicator.
#define NCCL_SPLIT_NOCOLOR -1

// Flags of ncclCommWindowRegister, to be or-ed.
#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01   // Collectives use it at the same offset on every rank.
#define NCCL_WIN_STRICT_ORDERING 0x02  // Puts of a peer show in the order issued.
// The start of a window must be a multiple of this many bytes.
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096

// Values of ncclConfig_t.CTAPolicy: how many device threads the library may take. Host ranks ignore
// the policy.
#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

// Flags of ncclCommShrink.
#define NCCL_SHRINK_DEFAULT 0x00  // The parent is healthy and idle.
#define NCCL_SHRINK_ABORT 0x01    // Give up operations on the parent first.

// Flags of ncclCommRevoke.
#define NCCL_REVOKE_DEFAULT 0x00

// Flags of ncclCommSuspend.
#define NCCL_SUSPEND_MEM 0x01  // Give back the memory that can be given back.

// Values of ncclConfig_t.hostCftMode: whether collectives of the host use logical endpoints.
typedef enum {
  ncclHostCftDefault = NCCL_CONFIG_UNDEF_INT,
  ncclHostCftEnable = 1,
  ncclHostCftDisable = 2,
  ncclHostCftFallback = 3
} ncclHostCftMode_t;

// Values of ncclConfig_t.nvlsHostMode: the disabled parts of in-switch reduction. The two flags may
// be combined.
typedef enum {
  ncclNvlsHostModeDefault = NCCL_CONFIG_UNDEF_INT,
  ncclNvlsHostModeEnable = 0,
  ncclNvlsHostModeDisableTransport = 1,
  ncclNvlsHostModeDisableSymmetricMultimem = 2,
  ncclNvlsHostModeDisable = 0x7fffffff
} ncclNvlsHostMode_t;

// Wishes for one communicator. Start from NCCL_CONFIG_INITIALIZER and set the fields you care
// about; anything else in `magic` is refused with ncclInvalidArgument. The order of fields is part
// of the binary interface: fields are only ever added at the end, and a shorter struct from an
// older header is told by `size` and `version` and taken. Fields must be equal on all ranks unless
// said otherwise. Host ranks accept and ignore fields for GPUs.
typedef struct ncclConfig_v23100 {
  // Filled by the initializer.
  size_t size;
  unsigned int magic;
  unsigned int version;
  // For the caller to set.
  int blocking;          // 1 (default): calls return when done. 0: calls may return ncclInProgress.
  int cgaClusterSize;    // GPU: thread-block cluster size, 0 to 8.
  int minCTAs;           // Fewest channels (device blocks, host workers) to use; at least 1.
  int maxCTAs;           // Most channels to use; at least minCTAs.
  const char* netName;   // Network to use, such as "Socket". Copied.
  int splitShare;        // 1: communicators split from it share its resources.
  int trafficClass;      // Network traffic class (type of service) for this communicator's traffic.
  const char* commName;  // Name for logs and errors; may differ per rank. Copied.
  int collnetEnable;     // 1: let switches reduce, where a network plugin can.
  int CTAPolicy;         // NCCL_CTA_POLICY_*.
  int shrinkShare;       // 1: communicators shrunk from it share its resources.
  int nvlsCTAs;          // GPU: blocks for in-switch reduction over NVLink.
  int nChannelsPerNetPeer;  // Channels toward each peer across the network, a power of two.
  int nvlinkCentricSched;   // GPU: 1 prefers schedules that favour NVLink.
  int graphUsageMode;       // GPU: 0 no CUDA graphs, 1 one at a time, 2 mixed with other work.
  int numRmaCtx;            // Contexts for PutSignal, Signal and WaitSignal.
  int maxP2pPeers;          // Most peers that this rank will Send to or Recv from.
  int graphStreamOrdering;  // GPU: 1 orders captured operations with other streams' work.
  // From here on: since NCCL 2.31 and 2.32.
  int launchOrderImplicit;  // GPU: 1 orders launches of several communicators as the host makes
                            // them.
  int numRmaSig;            // Signals of each context for PutSignal, Signal and WaitSignal.
  int rmaEagerInit;         // 1 connects for one-sided calls with the communicator.
  int hostCftMode;          // GPU: ncclHostCftMode_t.
  int nvlsHostMode;         // GPU: ncclNvlsHostMode_t.
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                         \
  {                                                                                     \
    sizeof(ncclConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* size, magic, version */ \
        NCCL_CONFIG_UNDEF_INT,                               /* blocking */             \
        NCCL_CONFIG_UNDEF_INT,                               /* cgaClusterSize */       \
        NCCL_CONFIG_UNDEF_INT,                               /* minCTAs */              \
        NCCL_CONFIG_UNDEF_INT,                               /* maxCTAs */              \
        NCCL_CONFIG_UNDEF_PTR,                               /* netName */              \
        NCCL_CONFIG_UNDEF_INT,                               /* splitShare */           \
        NCCL_CONFIG_UNDEF_INT,                               /* trafficClass */         \
        NCCL_CONFIG_UNDEF_PTR,                               /* commName */             \
        NCCL_CONFIG_UNDEF_INT,                               /* collnetEnable */        \
        NCCL_CONFIG_UNDEF_INT,                               /* CTAPolicy */            \
        NCCL_CONFIG_UNDEF_INT,                               /* shrinkShare */          \
        NCCL_CONFIG_UNDEF_INT,                               /* nvlsCTAs */             \
        NCCL_CONFIG_UNDEF_INT,                               /* nChannelsPerNetPeer */  \
        NCCL_CONFIG_UNDEF_INT,                               /* nvlinkCentricSched */   \
        NCCL_CONFIG_UNDEF_INT,                               /* graphUsageMode */       \
        NCCL_CONFIG_UNDEF_INT,                               /* numRmaCtx */            \
        NCCL_CONFIG_UNDEF_INT,                               /* maxP2pPeers */          \
        NCCL_CONFIG_UNDEF_INT,                               /* graphStreamOrdering */  \
        NCCL_CONFIG_UNDEF_INT,                               /* launchOrderImplicit */  \
        NCCL_CONFIG_UNDEF_INT,                               /* numRmaSig */            \
        NCCL_CONFIG_UNDEF_INT,                               /* rmaEagerInit */         \
        NCCL_CONFIG_UNDEF_INT,                               /* hostCftMode */          \
        NCCL_CONFIG_UNDEF_INT                                /* nvlsHostMode */         \
  }

// The result of ncclGroupSimulateEnd. Start from NCCL_SIM_INFO_INITIALIZER.
typedef struct ncclSimInfo_v22200 {
  // Filled by the initializer.
  size_t size;
  unsigned int magic;
  unsigned int version;
  float estimatedTime;  // Time of the group's operations, in microseconds.
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION_CODE, NCCL_UNDEF_FLOAT }

// Element types. Half types (f16, bf16, fp8) are summed in f32 within one step of a reduction.
typedef enum {
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

// Reductions. All ranks get the same bits, and a repeated call with the same input gives the same
// bits again. Integers wrap around on overflow.
typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,     // Sum divided by the number of ranks; integers round toward zero.
  ncclNumOps = 5,  // Operators from ncclRedOpCreate* count from here.
  ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

// The place of a made-up operator's scalar, and the time of its reading.
typedef enum {
  ncclScalarDevice = 0,        // In memory of the rank's device; read while the operation runs.
  ncclScalarHostImmediate = 1  // In host memory; read before the creating call returns.
} ncclScalarResidence_t;

// Figures of ncclCommMemStats. For a host rank, "memory" is the library's host memory for this
// communicator.
typedef enum {
  ncclStatGpuMemSuspend = 0,    // Bytes for ncclCommSuspend to give back.
  ncclStatGpuMemSuspended = 1,  // 1 while suspended, else 0.
  ncclStatGpuMemPersist = 2,    // Bytes that always stay.
  ncclStatGpuMemTotal = 3       // Bytes in all.
} ncclCommMemStat_t;

// A wait's condition in ncclWaitSignal.
typedef struct {
  int opCnt;   // How many signals.
  int peer;    // The signalling rank.
  int sigIdx;  // The signal.
  int ctx;     // The context.
} ncclWaitSignalDesc_t;

// A parameter found by name. Lives as long as the library; never freed by the caller.
typedef struct ncclParamHandle* ncclParamHandle_t;

// -------------------------------------------------------------------------------------------------
// Library
// -------------------------------------------------------------------------------------------------

// Stores the NCCL_VERSION_CODE of the loaded library's interface. For Tutti's own version see
// tuttiGetVersion.
ncclResult_t ncclGetVersion(int* version);
ncclResult_t pncclGetVersion(int* version);

// A few fixed words for a result code. Never null, even for unknown codes; never freed.
const char* ncclGetErrorString(ncclResult_t result);
const char* pncclGetErrorString(ncclResult_t result);

// The sentence of the last error: on `comm`, or, where `comm` is null, in the calling thread. Never
// null, "" where nothing failed yet. The text is the library's and may change with the next failing
// call.
const char* ncclGetLastError(ncclComm_t comm);
const char* pncclGetLastError(ncclComm_t comm);

// -------------------------------------------------------------------------------------------------
// Making a communicator
// -------------------------------------------------------------------------------------------------

// Opens a root in this process and stores an id with its address. One process makes the call, gives
// the id to every rank of the new communicator by any means (MPI, a file, a socket), and stays
// alive until all have joined. With NCCL_COMM_ID set, the id names the address in NCCL_COMM_ID, and
// the process of rank 0 opens the root there. An id serves one communicator.
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId* uniqueId);

// Joins a communicator of `nranks` ranks as `rank`, 0 <= rank < nranks, each rank number taken
// once. Every rank calls this with the same id; the call returns when all have arrived (inside a
// group: the outermost ncclGroupEnd does). If a rank does not arrive in time, all others fail with
// ncclTimeout and a list of missing ranks. On failure *comm is null. After a later failure of a
// group or a non-blocking call, *comm is a handle to be aborted. With CUDA the current device of
// the calling thread becomes the rank's device.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank);

// The same, with wishes. A null `config` means NCCL_CONFIG_INITIALIZER. With config->blocking = 0
// the call may return ncclInProgress with *comm set; poll ncclCommGetAsyncError.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config);

// The same, through `nId` roots that share the work, 1 <= nId <= nranks. The array of ids and its
// order are the same on every rank; each id comes from its own ncclGetUniqueId, best on different
// hosts.
ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId* commIds, ncclConfig_t* config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId* commIds, ncclConfig_t* config);

// Makes all `ndev` ranks of a new communicator in the calling process, without an id. `comm` has
// room for `ndev` handles; comm[i] is rank i on device devlist[i]. A null `devlist` takes devices 0
// to ndev-1. A host has as many devices as are asked for.
ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);
ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist);

// -------------------------------------------------------------------------------------------------
// Ending a communicator
// -------------------------------------------------------------------------------------------------

// Lets the operations issued on this rank finish and takes no more. For a blocking communicator the
// call returns when the operations are done here. For a non-blocking one it returns ncclInProgress,
// and the state becomes ncclSuccess at the end. All ranks make the call. Afterwards only
// ncclCommGetAsyncError, ncclCommDestroy, which frees the connections, and ncclCommAbort are
// allowed.
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

// Frees the communicator once this rank's own operations are done. Does not wait for other ranks: a
// thread may destroy its ranks one after another, with or without ncclCommFinalize before. Null is
// allowed.
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

// Frees the communicator without a wait: operations under way are given up, on other threads of
// this rank too, and return an error. Ends within seconds in all cases. Work in a stream behind
// work that does not move fails when the stream reaches it. Null is allowed.
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

// Stops the operations under way but keeps the communicator for Split, Shrink and Destroy. Needs no
// other rank. Operations issued later are refused with ncclInvalidUsage. `revokeFlags` is
// NCCL_REVOKE_DEFAULT.
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

// -------------------------------------------------------------------------------------------------
// Communicators from communicators
// -------------------------------------------------------------------------------------------------

// Parts `comm` by color: ranks with the same color (>= 0) form a new communicator, numbered by
// `key` and, among equal keys, by their rank in `comm`. All ranks of `comm` make the call.
// NCCL_SPLIT_NOCOLOR gives *newcomm = NCCL_COMM_NULL. A null `config` takes over the parent's. No
// operation may be under way on the parent.
//
// With a non-blocking parent poll the PARENT: *newcomm is set when the parent is no longer
// ncclInProgress. The same holds for ncclCommShrink, and for ncclCommGrow on a rank with a parent.
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                            ncclConfig_t* config);

// Makes a new communicator without the `excludeRanksCount` listed ranks (numbers in `comm`). The
// remaining ranks keep their order and are numbered from 0. Only the remaining ranks make the call,
// with the same list. `shrinkFlags` is a value NCCL_SHRINK_*; with NCCL_SHRINK_ABORT the excluded
// ranks may be dead and the parent broken. An excluded rank that lives is not told: its operations
// on the parent wait for the ranks that shrank until the end of TUTTI_TIMEOUT_S, unless the rank
// aborts. The parent remains the caller's to destroy or abort.
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                            ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                             ncclComm_t* newcomm, ncclConfig_t* config, int shrinkFlags);

// Makes an id by which new ranks join in the next ncclCommGrow of `comm`. An existing rank (the
// grow root) makes the call and hands the id to the new ranks. An id serves one grow; a second id
// before the grow is ncclInvalidUsage.
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* uniqueId);

// Makes a new communicator of `nRanks` ranks: all ranks of an existing communicator, with their
// numbers, and new ranks after them. Arguments:
//   existing rank, not the grow root:  comm, uniqueId = NULL, rank = -1
//   the grow root:                     comm, uniqueId = the id it made, rank = -1
//   new rank:                          comm = NULL, uniqueId = the id, rank = its number, old size
//   <= rank < nRanks
// A null `config` takes over the parent's, or the defaults on a new rank. The parent remains the
// caller's.
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                          ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId* uniqueId, int rank,
                           ncclComm_t* newcomm, ncclConfig_t* config);

// -------------------------------------------------------------------------------------------------
// Asking a communicator
// -------------------------------------------------------------------------------------------------

// Stores the state of `comm` in *asyncError: ncclSuccess, ncclInProgress, or the first error of the
// communicator. The return value only tells whether the state was stored.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError);

// Number of ranks.
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t pncclCommCount(const ncclComm_t comm, int* count);

// Number of the rank's device: the CUDA device, or the host device for a host rank.
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device);

// This rank's number, 0 to count-1.
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank);

// -------------------------------------------------------------------------------------------------
// Memory phases: the program uses a communicator's memory while the communicator rests
// -------------------------------------------------------------------------------------------------

// Gives back the memory named by `flags` (NCCL_SUSPEND_MEM). Until ncclCommResume operations are
// refused with ncclInvalidUsage. All ranks make the call, with nothing under way.
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

// Takes back the memory that ncclCommSuspend gave. All ranks make the call.
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

// Stores a figure of ncclCommMemStat_t.
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value);

// -------------------------------------------------------------------------------------------------
// Memory, registration, windows
// -------------------------------------------------------------------------------------------------

// Allocates at least `size` bytes of memory that moves with the fewest copies: for host ranks,
// memory that other processes of the machine can map. Aligned to NCCL_WIN_REQUIRED_ALIGNMENT. Needs
// no communicator.
ncclResult_t ncclMemAlloc(void** ptr, size_t size);
ncclResult_t pncclMemAlloc(void** ptr, size_t size);

// Frees memory from ncclMemAlloc. Null is allowed. No operation may be using the memory, and no
// window may hold it.
ncclResult_t ncclMemFree(void* ptr);
ncclResult_t pncclMemFree(void* ptr);

// Announces that operations on `comm` will often use `buff`, and lets the library make the buffer
// reachable once. Any memory of the rank's device. Local; never needed for correctness. *handle
// goes to ncclCommDeregister.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle);

// Takes ncclCommRegister back. The buffer itself is untouched.
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void* handle);

// Makes `size` bytes at `buff` addressable by the other ranks of `comm`. All ranks make the call at
// the same point, with the same flags, an or of NCCL_WIN_*; sizes may differ. In a group, *win is
// valid after ncclGroupEnd. `buff` comes from ncclMemAlloc and starts at a multiple of
// NCCL_WIN_REQUIRED_ALIGNMENT, on all ranks at the same distance from the start of its memory. With
// null the library allocates memory for the life of the window, and ncclWinGetUserPtr returns the
// address. Several windows may share memory. Where ranks share a machine, ncclGetPeerDevicePointer
// then tells the addresses of their parts. If the call of a rank is wrong, or ranks differ in
// flags, all get the error, and the communicator remains usable.
//
// Succeeds with a null *win on all ranks if no window is possible: other ranks cannot map the
// memory of some rank (malloc, cudaMalloc), or GPUs do not reach one another's memory. The program
// loses only the advantages of a window. Null for `buff` is an error then.
//
// With NCCL_WIN_COLL_SYMMETRIC, between GPUs that reach one another's memory, AllReduce, AllGather
// and ReduceScatter work in registered buffers from then on. The caller promises the same windows
// and offsets of an operation's buffers on all ranks, and deregistration between the same
// operations on all ranks; otherwise ranks may hang or write elsewhere.
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                     int winFlags);

// Ends a window on this rank; other ranks reach the memory until they end their windows. Nothing
// may be using the window, graphs included. Null is allowed. The communicator ends its remaining
// windows.
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

// Stores the start of this rank's own memory behind `win`.
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr);

// -------------------------------------------------------------------------------------------------
// Operators of one's own
// -------------------------------------------------------------------------------------------------

// Makes an operator that multiplies this rank's input by *scalar (of type `datatype`) and then
// sums. The operator is valid for `comm` and `datatype` only. Every rank makes its own, and the
// scalars may differ. `residence` tells the place of *scalar and the time of its reading.
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);

// Frees such an operator. Issued operations with the operator are not harmed.
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

// -------------------------------------------------------------------------------------------------
// Collectives
//
// Every rank of `comm` calls with the same count, type, operator and root. Otherwise the operation
// fails with ncclInvalidUsage naming both sides, as far as the difference is noticed. A count of 0
// is allowed and moves nothing. Buffers of a call must not overlap except in place, as each
// function describes.
// -------------------------------------------------------------------------------------------------

// recvbuff of rank `root` [count] = reduction over all ranks of sendbuff [count]. Elsewhere
// recvbuff is not used and may be null. In place: recvbuff == sendbuff.
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                         cudaStream_t stream);

// buff [count] of rank `root` replaces buff on all ranks. The older form of ncclBroadcast, always
// in place.
ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);

// recvbuff [count] on all ranks = sendbuff [count] of rank `root`. Elsewhere sendbuff is not used
// and may be null. In place: recvbuff == sendbuff.
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, int root, ncclComm_t comm,
                            cudaStream_t stream);

// recvbuff [count] on all ranks = reduction over all ranks of sendbuff [count]. In place: recvbuff
// == sendbuff.
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream);
ncclResult_t pncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                            cudaStream_t stream);

// sendbuff is [nranks][recvcount]; recvbuff [recvcount] of rank i = reduction over all ranks of row
// i. In place: recvbuff == sendbuff + rank * recvcount.
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream);

// recvbuff [nranks][sendcount] on all ranks: row i = sendbuff [sendcount] of rank i. In place:
// sendbuff == recvbuff + rank * sendcount.
ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

// sendbuff and recvbuff are [nranks][count]: row i of recvbuff on rank j = row j of sendbuff on
// rank i. In place: recvbuff == sendbuff.
ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

// recvbuff [nranks][count] of rank `root`: row i = sendbuff [count] of rank i. Elsewhere recvbuff
// is not used and may be null. In place at the root: sendbuff == recvbuff + root * count.
ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

// recvbuff [count] of rank i = row i of sendbuff [nranks][count] of rank `root`. Elsewhere sendbuff
// is not used and may be null. In place at the root: recvbuff == sendbuff + root * count.
ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);

// -------------------------------------------------------------------------------------------------
// Collectives with options of their own
// -------------------------------------------------------------------------------------------------

// An option for a single vendor's library. Options of other vendors are ignored; tutti/tutti.h has
// Tutti's own (TUTTI_VENDOR_ID).
typedef struct ncclConfigExt {
  struct ncclConfigExt* next;  // The next option; null ends the list.
  struct {
    int vendorId;  // Below 2^24, not 0.
    int optionId;
  } key;
  union {
    int i;
    const char* s;
    void* raw;
  } val;
} ncclConfigExt_t;

// The wishes for a call. Start from NCCL_COLLCONFIG_INITIALIZER. All ranks give the same wishes,
// and keep the struct until the call returns.
typedef struct ncclCollConfig_v23200 {
  // Filled by the initializer.
  size_t size;
  unsigned int magic;
  unsigned int version;
  // For the caller to set.
  ncclConfigExt_t* ext;      // Options of vendors, at most 1024; null: none.
  int minCTAs;               // Fewest channels for this call; at least 1. Checked, then ignored.
  int maxCTAs;               // GPU: most blocks of a kernel, but one for each message of AlltoAll,
                             // Gather and Scatter; at least minCTAs. Hosts: checked, then ignored.
  int nvlsCTAs;              // GPU: blocks for in-switch reduction. Checked, then ignored.
  int cgaClusterSize;        // GPU: 0 to 8. Checked, then ignored.
  const char* algSelection;  // The allowed algorithms, as in NCCL_ALGO; null or "": any.
  int forceAlgSelection;     // 1 (default): a selection that cannot be kept is an error, on hosts
                             // and GPUs. 0: it is a wish.
  int CTAPolicy;             // NCCL_CTA_POLICY_*. Checked, then ignored.
  uint64_t userProfilerTag;  // For profiler plugins, of hosts; 0: none. The highest bit is NCCL's.
  cudaEvent_t launchCompletionEvent;  // Recorded once the call has begun, not ended; null: none.
} ncclCollConfig_t;

#define NCCL_COLLCONFIG_INITIALIZER                                                          \
  {                                                                                          \
    sizeof(ncclCollConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* size, magic, version */  \
        NCCL_CONFIG_UNDEF_PTR,                                   /* ext */                   \
        NCCL_CONFIG_UNDEF_INT,                                   /* minCTAs */               \
        NCCL_CONFIG_UNDEF_INT,                                   /* maxCTAs */               \
        NCCL_CONFIG_UNDEF_INT,                                   /* nvlsCTAs */              \
        NCCL_CONFIG_UNDEF_INT,                                   /* cgaClusterSize */        \
        NCCL_CONFIG_UNDEF_PTR,                                   /* algSelection */          \
        1,                                                       /* forceAlgSelection */     \
        NCCL_CONFIG_UNDEF_INT,                                   /* CTAPolicy */             \
        0,                                                       /* userProfilerTag */       \
        NCCL_CONFIG_UNDEF_PTR                                    /* launchCompletionEvent */ \
  }

// Each does the same as the function without Config. A null config has no wishes.
// ncclInvalidArgument for an uninitialised config or a value out of range, ncclInvalidUsage for a
// wish that a single call cannot have.
ncclResult_t ncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclAllReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                                  ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t* config);

ncclResult_t ncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, int root, ncclComm_t comm,
                                 cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclBroadcastConfig(const void* sendbuff, void* recvbuff, size_t count,
                                  ncclDataType_t datatype, int root, ncclComm_t comm,
                                  cudaStream_t stream, const ncclCollConfig_t* config);

ncclResult_t ncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclReduceConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config);

ncclResult_t ncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t pncclAllGatherConfig(const void* sendbuff, void* recvbuff, size_t sendcount,
                                  ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                  const ncclCollConfig_t* config);

ncclResult_t ncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                     ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclReduceScatterConfig(const void* sendbuff, void* recvbuff, size_t recvcount,
                                      ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream, const ncclCollConfig_t* config);

ncclResult_t ncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                const ncclCollConfig_t* config);
ncclResult_t pncclAlltoAllConfig(const void* sendbuff, void* recvbuff, size_t count,
                                 ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream,
                                 const ncclCollConfig_t* config);

ncclResult_t ncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                              ncclDataType_t datatype, int root, ncclComm_t comm,
                              cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclGatherConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config);

ncclResult_t ncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                               ncclDataType_t datatype, int root, ncclComm_t comm,
                               cudaStream_t stream, const ncclCollConfig_t* config);
ncclResult_t pncclScatterConfig(const void* sendbuff, void* recvbuff, size_t count,
                                ncclDataType_t datatype, int root, ncclComm_t comm,
                                cudaStream_t stream, const ncclCollConfig_t* config);

// -------------------------------------------------------------------------------------------------
// Point to point
//
// A send meets the receive of the same count and type on the peer; between two ranks they match in
// the order issued. Both may wait for each other, and operations that must run at the same time
// belong into one group. A send to oneself is allowed inside a group with the receive.
// -------------------------------------------------------------------------------------------------

// Sends sendbuff [count] to rank `peer`.
ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);

// Receives recvbuff [count] from rank `peer`.
ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                       ncclComm_t comm, cudaStream_t stream);

// -------------------------------------------------------------------------------------------------
// One-sided: write into a peer's window and signal
// -------------------------------------------------------------------------------------------------

// For host ranks, from the first registered window on (hostRmaSupport of ncclCommQueryProperties
// tells where). `peer` may be this rank, and need not be in any call. Each pair of ranks has one
// signal, `sigIdx` 0 of context `ctx` 0; `flags` is 0. In a group, puts and signals come before
// waits. InvalidArgument beyond the window.

// Writes localbuff [count] into rank `peer`'s part of the window `peerWin`, `peerWinOffset` bytes
// from its start, then signals there. A peer that has waited for the signal sees the data, and all
// earlier puts of this rank to the peer. localbuff is any memory of this rank's device, and may be
// used again when the call is done.
ncclResult_t ncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream);

// Sends the signal alone. The signal is seen after all earlier puts of this rank to `peer`.
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream);

// Makes the stream wait until each of the `nDesc` descriptors has its `opCnt` signals, and takes
// the signals. RemoteError when an awaited rank is lost.
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                            cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                             cudaStream_t stream);

// -------------------------------------------------------------------------------------------------
// Groups
//
// Calls between Start and End are collected, and the End of this thread's outermost Start issues
// them together. Groups let one thread drive several ranks, let sends and receives run at the same
// time, and fuse small operations. A group holds operations, or the making and ending of
// communicators, not both.
// -------------------------------------------------------------------------------------------------

// Opens a group, or a deeper level of an open group.
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

// Closes a level; the outermost issues the group. Returns the first error of any call in the group,
// and then issues nothing of the group, or ncclInProgress for a group with a non-blocking
// communicator. Without an open group: ncclInvalidUsage.
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

// Closes a level and stores the estimated cost of the group's operations; at the outermost level
// the group is dropped without being issued. A null `simInfo` stores nothing. A group that makes
// communicators is ncclInvalidUsage, and their making fails.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo);

// -------------------------------------------------------------------------------------------------
// Parameters: the settings in force, by name (such as "NCCL_BUFFSIZE")
// -------------------------------------------------------------------------------------------------

// Finds a parameter. An unknown key is ncclInvalidArgument.
ncclResult_t ncclParamBind(ncclParamHandle_t* out, const char* key);
ncclResult_t pncclParamBind(ncclParamHandle_t* out, const char* key);

// Read a parameter as an integer of one width. A value that does not fit, or is not a number, is
// ncclInvalidArgument.
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t* out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t* out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t* out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t* out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t* out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t* out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t* out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t* out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t* out);

// Reads a parameter as text. The text is the library's, good until this thread calls the function
// again.
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char** out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char** out);

// Copies its bytes into out[maxLen] and stores how many in *len. Too little room is
// ncclInvalidArgument.
ncclResult_t ncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void* out, int maxLen, int* len);

// Text and its length by key, in one step. Good until this thread calls the function again.
ncclResult_t ncclParamGetParameter(const char* key, const char** value, int* valueLen);
ncclResult_t pncclParamGetParameter(const char* key, const char** value, int* valueLen);

// All keys. The table is the library's, good until this thread calls the function again.
ncclResult_t ncclParamGetAllParameterKeys(const char*** table, int* tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char*** table, int* tableLen);

// Writes all parameters and their values to the log.
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

// -------------------------------------------------------------------------------------------------
// Encryption
// -------------------------------------------------------------------------------------------------

typedef enum {
  NCCL_ENCRYPTION_MODE_NONE = 0,  // Data of the socket network travel as they are.
  NCCL_ENCRYPTION_MODE_PSK = 1    // They are encrypted with a key that all ranks know.
} ncclEncryptionMode_t;

// The argument of ncclSetEncryption. Start from NCCL_ENCRYPTION_CONFIG_INITIALIZER.
typedef struct ncclEncryptionConfig_v23200 {
  // Filled by the initializer.
  size_t size;
  unsigned int magic;
  unsigned int version;
  // For the caller to set.
  int mode;         // ncclEncryptionMode_t
  const char* psk;  // The key, in mode PSK.
} ncclEncryptionConfig_t;

#define NCCL_ENCRYPTION_CONFIG_INITIALIZER                                                      \
  {                                                                                             \
    sizeof(ncclEncryptionConfig_t), NCCL_API_MAGIC, NCCL_VERSION_CODE, /* size, …, version */ \
        NCCL_ENCRYPTION_MODE_NONE,                                     /* mode */               \
        NCCL_CONFIG_UNDEF_PTR                                          /* psk */                \
  }

// Chooses the protection of data on sockets for communicators that this process makes from now on,
// and for communicators made from them. PSK encrypts and authenticates the data, as TUTTI_ENCRYPT=1
// does, with keys derived from `psk` too: a text of at least 32 bytes, the same on all ranks. NONE,
// or a null config: as the environment says. InvalidArgument for unknown modes and shorter keys.
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config);
ncclResult_t pncclSetEncryption(const ncclEncryptionConfig_t* config);

// Does nothing: NCCL_DEBUG and its like are read once. Deprecated in NCCL.
void ncclResetDebugInit(void);
void pncclResetDebugInit(void);
void ncclResetDebugInitInternal(void);
void pncclResetDebugInitInternal(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // NCCL_H_
