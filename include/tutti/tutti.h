// SPDX-License-Identifier: Apache-2.0
//
// tutti/tutti.h: additions to NCCL. Host streams and events, collectives with different amounts on
// each rank, a barrier, and functions that describe the library in words. Plain C, beside nccl.h.
//
// Results, threads, groups and errors are as in nccl.h: ncclInvalidArgument for a bad value, a
// sentence in ncclGetLastError. Counts and displacements are numbers of elements.

#ifndef TUTTI_TUTTI_H_
#define TUTTI_TUTTI_H_

#include "nccl.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

// -------------------------------------------------------------------------------------------------
// Library
// -------------------------------------------------------------------------------------------------

// Stores Tutti's own version, such as "0.1.0". The text lives as long as the library.
ncclResult_t tuttiGetVersion(const char** version);

// -------------------------------------------------------------------------------------------------
// The device of a rank
// -------------------------------------------------------------------------------------------------

// ncclCommInitRank of a rank on `device`: a CUDA device, whichever is current, or -1 for the host's
// memory, also on a machine with GPUs. All ranks of a communicator are of one kind. With
// TUTTI_BACKEND=host there are no ranks on CUDA devices (ncclInvalidUsage).
ncclResult_t tuttiCommInitRankOn(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                 int device);

// ncclGetUniqueId for ranks that have met at the host `meetingHost`, a name or an address. The
// ranks reach the id by the interface of this host that leads there; a further interface may lead
// nowhere. NCCL_SOCKET_IFNAME counts first. ncclGetUniqueId takes the host from TUTTI_ADDR,
// MASTER_ADDR or HOROVOD_GLOO_RENDEZVOUS_ADDR. Without a host, for an unknown name and for a
// loopback address all interfaces are candidates.
ncclResult_t tuttiGetUniqueIdFor(ncclUniqueId* uniqueId, const char* meetingHost);

// -------------------------------------------------------------------------------------------------
// Wishes for a communicator beyond ncclConfig_t
// -------------------------------------------------------------------------------------------------

// Start from TUTTI_CONFIG_INITIALIZER and set the fields you care about; anything else in `magic`
// is refused with ncclInvalidArgument. Fields are only ever added at the end, and a shorter struct
// from an older header is told by `size` and taken.
typedef struct tuttiConfig_v100 {
  // Filled by the initializer.
  size_t size;
  unsigned int magic;
  // For the caller to set; NCCL_CONFIG_UNDEF_INT leaves a field to the library.
  int device;         // As in tuttiCommInitRankOn; may differ per rank.
  int deterministic;  // 1: reductions give the same bits at every size (docs/determinism.md), as
                      // with TUTTI_DETERMINISTIC=1, which 0 does not take back. Equal on all ranks.
  double timeoutSeconds;      // In TUTTI_TIMEOUT_S's place; 0: as that says. May differ per rank.
  double initTimeoutSeconds;  // In TUTTI_INIT_TIMEOUT_S's place, likewise.
  // The numbers by which sentences on this rank name the nranks ranks, such as their ranks in the
  // group of which the communicator joins a part; null: their ranks. Read during the call.
  // Communicators split from the new communicator do not inherit the numbers.
  const int* shownRanks;
} tuttiConfig_t;

#define TUTTI_CONFIG_MAGIC 0x74757474u
#define TUTTI_CONFIG_INITIALIZER                                                                   \
  {                                                                                                \
    sizeof(tuttiConfig_t), TUTTI_CONFIG_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, 0, 0, \
        0                                                                                          \
  }

// ncclCommInitRankConfig with wishes of both kinds. Either may be null. Communicators split, shrunk
// or grown from the new communicator inherit the wishes. Ranks that join by ncclCommGrow need
// TUTTI_DETERMINISTIC=1 if the other ranks are deterministic.
ncclResult_t tuttiCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config, const tuttiConfig_t* tuttiConfig);

// -------------------------------------------------------------------------------------------------
// Wishes for one call beyond ncclCollConfig_t
//
// An option in the list `ext` of an ncclCollConfig_t, with key.vendorId TUTTI_VENDOR_ID and a value
// below as key.optionId. All ranks give the same options. ncclInvalidArgument for an unknown option
// or a value out of range.
// -------------------------------------------------------------------------------------------------

#define TUTTI_VENDOR_ID 0x747574

typedef enum {
  // val.i = 1: the reduction gives the same bits as in a communicator with `deterministic`.
  // ncclInvalidUsage between GPUs of which not all reach one another's memory, unless the
  // communicator was made deterministic.
  tuttiCallDeterministic = 1,
  // val.i: milliseconds, at least 1, in TUTTI_TIMEOUT_S's place. Host ranks only, else
  // ncclInvalidUsage.
  tuttiCallTimeoutMs = 2
} tuttiCallOption_t;

// -------------------------------------------------------------------------------------------------
// Host streams
//
// A host stream is a queue of operations that a thread of the library runs in order, while the
// caller continues. With host ranks a host stream replaces a cudaStream_t in all functions of
// nccl.h; CUDA's own functions do not know host streams. The caller owns the stream. Any thread may
// use the stream.
//
// The null stream is the calling thread itself: every operation on it is done at the return of the
// call, and the stream is always idle.
// -------------------------------------------------------------------------------------------------

typedef cudaStream_t tuttiStream_t;

// Makes an empty stream and its thread. The thread sleeps while the stream is empty.
ncclResult_t tuttiStreamCreate(tuttiStream_t* stream);

// Waits until the stream is empty, then frees the stream. No thread may be using the stream, and a
// function that runs on the stream must not make this call (ncclInvalidUsage). Null is allowed.
ncclResult_t tuttiStreamDestroy(tuttiStream_t stream);

// Waits until everything queued before this call is done. Returns and forgets the first error of an
// operation on the stream since the last tuttiStreamSynchronize; ncclSuccess without an error.
ncclResult_t tuttiStreamSynchronize(tuttiStream_t stream);

// ncclSuccess for an empty stream, else ncclInProgress. Never waits.
ncclResult_t tuttiStreamQuery(tuttiStream_t stream);

// Queues `fn(arg)` for the stream's thread, after earlier work (on the null stream: runs it now).
// `fn` must not wait for this stream. The memory behind `arg` stays the caller's.
typedef void (*tuttiHostFn_t)(void* arg);
ncclResult_t tuttiStreamLaunchHostFunc(tuttiStream_t stream, tuttiHostFn_t fn, void* arg);

// -------------------------------------------------------------------------------------------------
// Host events
//
// An event marks a point in a stream. An event is done when the stream has passed the point of the
// last record; an event without a record counts as done. The caller owns the event and keeps it
// until the last stream with a record of the event, or a wait for it, has passed both. Any thread
// may use the event.
// -------------------------------------------------------------------------------------------------

typedef struct tuttiEvent* tuttiEvent_t;

ncclResult_t tuttiEventCreate(tuttiEvent_t* event);

// Null is allowed.
ncclResult_t tuttiEventDestroy(tuttiEvent_t event);

// Marks the end of the present work of `stream` (the null stream: the present moment).
ncclResult_t tuttiEventRecord(tuttiEvent_t event, tuttiStream_t stream);

// Makes later work of `stream` wait for the event's last record (the null stream: the caller
// waits). Waiting for an event of the same stream does nothing.
ncclResult_t tuttiStreamWaitEvent(tuttiStream_t stream, tuttiEvent_t event);

// Waits until the event is done.
ncclResult_t tuttiEventSynchronize(tuttiEvent_t event);

// ncclSuccess for an event that is done, else ncclInProgress. Never waits.
ncclResult_t tuttiEventQuery(tuttiEvent_t event);

// Stores the milliseconds from `start` to `end`, on the monotonic clock. Both have been recorded
// (else ncclInvalidUsage) and are done (else ncclInProgress).
ncclResult_t tuttiEventElapsedTime(double* elapsed_ms, tuttiEvent_t start, tuttiEvent_t end);

// -------------------------------------------------------------------------------------------------
// Collectives with a size per rank
//
// Arrays of counts and displacements have one entry per rank, are read before the call returns, and
// remain the caller's. An entry may be 0. The operation runs on `stream` like operations of nccl.h,
// in groups too. Except in place, as each function describes, buffers must not overlap, and neither
// may written blocks.
// -------------------------------------------------------------------------------------------------

// recvbuff on all ranks: recvcounts[i] elements at recvbuff + displs[i] = sendbuff of rank i.
// `recvcounts` is the same on all ranks and sendcount == recvcounts[rank]. `displs` may differ;
// with null the blocks lie one after another. In place: sendbuff == recvbuff + displs[rank].
ncclResult_t tuttiAllGatherV(const void* sendbuff, size_t sendcount, void* recvbuff,
                             const size_t* recvcounts, const size_t* displs,
                             ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

// sendbuff holds one block per rank, recvcounts[0], recvcounts[1], ... elements, one after another;
// recvbuff [recvcounts[i]] of rank i = reduction over all ranks of block i. `recvcounts` is the
// same on all ranks. In place: recvbuff == start of the own block in sendbuff.
ncclResult_t tuttiReduceScatterV(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                 cudaStream_t stream);

// sendcounts[j] elements at sendbuff + sdispls[j] go to rank j; recvcounts[i] elements from rank i
// arrive at recvbuff + rdispls[i]. sendcounts[j] on rank i == recvcounts[i] on rank j. A null
// `sdispls` or `rdispls` means blocks one after another. Not in place.
ncclResult_t tuttiAlltoAllV(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                            void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);

// As MPI_Gatherv. On rank `root`, recvcounts[i] elements at recvbuff + displs[i] = sendbuff
// [sendcount] of rank i. sendcount == recvcounts[rank]. Only the root reads `recvbuff`,
// `recvcounts` and `displs`; other ranks may pass null. A null `displs` of the root means blocks
// one after another. In place: sendbuff == recvbuff + displs[root] on the root. A count that
// differs from its entry on the root fails all ranks with ncclInvalidUsage, in this call or later.
ncclResult_t tuttiGatherV(const void* sendbuff, size_t sendcount, void* recvbuff,
                          const size_t* recvcounts, const size_t* displs, ncclDataType_t datatype,
                          int root, ncclComm_t comm, cudaStream_t stream);

// As MPI_Scatterv. recvbuff [recvcount] of rank i = sendcounts[i] elements at sendbuff + displs[i]
// on rank `root`. recvcount == sendcounts[rank]. Only the root reads `sendbuff`, `sendcounts` and
// `displs`; other ranks may pass null. A null `displs` of the root means blocks one after another.
// In place: recvbuff == sendbuff + displs[root] on the root. A count that differs from its entry on
// the root fails all ranks with ncclInvalidUsage, in this call or later.
ncclResult_t tuttiScatterV(const void* sendbuff, const size_t* sendcounts, const size_t* displs,
                           void* recvbuff, size_t recvcount, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream);

// Queues one allreduce of `nbuffs` vectors, as if the vectors lay end to end: recvbuffs[i]
// [counts[i]] = reduction over all ranks of sendbuffs[i] [counts[i]]. Ranks bring equally many
// elements in all, in any number of buffers. The arrays are read before the call returns; a count
// may be 0. In place: sendbuffs[i] == recvbuffs[i]. Much faster than `nbuffs` calls, and on one
// machine faster than packing small vectors into a large one.
ncclResult_t tuttiAllReduceMany(const void* const* sendbuffs, void* const* recvbuffs,
                                const size_t* counts, size_t nbuffs, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

// Done on a rank only after every rank of `comm` has begun the barrier.
ncclResult_t tuttiBarrier(ncclComm_t comm, cudaStream_t stream);

// -------------------------------------------------------------------------------------------------
// The arithmetic of Adasum
//
// Adasum adds vectors and counts their common part only once:
//
//   adasum(a, b) = (1 - a·b / 2 a·a) a + (1 - a·b / 2 b·b) b
//
// The functions are the steps of Adasum on one device, for `n` independent tensors at a time. The
// caller moves the vectors and dot products of ranks between the steps, as the coordinator does
// (docs/coordinator.md). `device` is the CUDA device of all memory, or -1 for the host, and the
// work is queued on `stream`, a stream of the device. Arrays of counts and of pointers are read
// before the call returns. Groups do not hold the work back. A count may be 0. Elements lie at
// multiples of their size. Sums are taken in f64, in an order that depends on the counts alone:
// hosts and GPUs give the same bits. ncclInvalidUsage if the library has no code for the device.
// -------------------------------------------------------------------------------------------------

// to[i][j] = from[i][j] * factor, for j below counts[i]: from tensors to vectors, or from vectors
// to tensors. Vectors are f64 for tensors of f64, and f32 for tensors of other floats, and the
// factor is rounded to the type of the vectors. A null from[i] stands for a tensor of zeros.
// Sources and targets must not overlap.
ncclResult_t tuttiAdasumConvert(const void* const* from, ncclDataType_t fromType, void* const* to,
                                ncclDataType_t toType, const size_t* counts, size_t n,
                                double factor, int device, cudaStream_t stream);

// The dot products of two vectors for Adasum: a·b, a·a and b·b.
#define TUTTI_ADASUM_DOTS 3
// The numbers that tuttiAdasumDots needs for each tensor, besides the result.
#define TUTTI_ADASUM_SCRATCH 384

// dots[3 * i], dots[3 * i + 1], dots[3 * i + 2] = a·b, a·a, b·b of tensor i with counts[i]
// elements. The tensors lie one after another in `a` and in `b`. `datatype` is f32 or f64.
ncclResult_t tuttiAdasumDots(const void* a, const void* b, const size_t* counts, size_t n,
                             ncclDataType_t datatype, double* dots, double* scratch, int device,
                             cudaStream_t stream);

// dots[j] = all[j] + all[3 * n + j] + all[6 * n + j] + ..., for j below 3 * n: the sum of the dot
// products of `n` tensors on `narrays` ranks, from different parts of the vectors. `dots` may be
// `all`.
ncclResult_t tuttiAdasumSumDots(const double* all, size_t narrays, size_t n, double* dots,
                                int device, cudaStream_t stream);

// out = adasum(a, b) for each tensor, by its dot products. `out` may be `a` or `b`.
ncclResult_t tuttiAdasumCombine(const void* a, const void* b, void* out, const size_t* counts,
                                size_t n, ncclDataType_t datatype, const double* dots, int device,
                                cudaStream_t stream);

// -------------------------------------------------------------------------------------------------
// Asking in words
//
// Text for people is written to buffer[capacity], cut to the capacity, and always ends in a zero
// byte. *needed (unless `needed` is null) is the capacity for the whole text, and a first call may
// pass buffer = NULL with capacity 0. A cut text is still ncclSuccess.
// -------------------------------------------------------------------------------------------------

// Stores a JSON object about `comm` as this rank sees it: rank, ranks, hosts, protection, and the
// transport to each peer: "self", "shm", "gpu", or the name of the network ("Socket", "IB", or a
// plugin's own name). "protection" is an object: "network" names the network for data between hosts
// ("" where there is none), "encrypted" is true or false, "cipher" names the cipher ("" without
// encryption), and "secret" says where the secret comes from: "ncclSetEncryption", the variable or
// the file that gave the job's secret, or "none". Data in shared memory and between GPUs of a host
// are not encrypted.
ncclResult_t tuttiCommDescribe(ncclComm_t comm, char* buffer, size_t capacity, size_t* needed);

// Stores the lost ranks of `comm`: their processes ended, their hosts are out of reach, or the
// remaining ranks go on without them because a connection broke. Stores the first `capacity` of
// them in `ranks`, in rising order, and their number in `*count`; `ranks` may be null when
// `capacity` is 0. The remaining ranks agree: once an operation of `comm` has failed with
// ncclRemoteError for a loss, all of them get the same list, to pass to ncclCommShrink with
// NCCL_SHRINK_ABORT. The list only grows, with later losses. A live rank without which the
// remaining ranks go on finds itself in its list. Any thread; also after a failure, until `comm` is
// destroyed.
ncclResult_t tuttiCommGetLostRanks(ncclComm_t comm, int* ranks, int capacity, int* count);

// Stores the hung ranks of `comm`, in the same way: the ranks that did not answer when a wait of
// `comm` came to its time-out, here or on another rank. A stopped process and a process whose host
// is overloaded are hung; a rank that is only late answers, and is not hung. The ranks do not agree
// on hung ranks: each rank tells the others, and the lists are equal a moment after the last
// time-out. A program may pass the list to ncclCommShrink, together with the lost ranks, once its
// ranks have the same list. The list only grows. Any thread; also after a failure, until `comm` is
// destroyed.
ncclResult_t tuttiCommGetHungRanks(ncclComm_t comm, int* ranks, int capacity, int* count);

// Sets how long operations of `comm` that begin from now on may wait without progress: `seconds` in
// the place of TUTTI_TIMEOUT_S, 0 for no limit. On this rank only; other ranks may have other
// time-outs. Host ranks only, else ncclInvalidUsage. Any thread.
ncclResult_t tuttiCommSetTimeout(ncclComm_t comm, double seconds);

// Stores how `comm` would run a collective of `count` elements: the algorithm and protocol, per
// channel the work, per connection the proxy operations. `collective` is "AllReduce", "Reduce",
// "Broadcast", "AllGather", "ReduceScatter", "AlltoAll", "Gather" or "Scatter", with `count` as in
// the function of the same name, out of place, root 0; an unknown name or operator, or more than
// 2^44 bytes, is ncclInvalidArgument. Collectives without a reduction ignore `op`. Local: no other
// rank need call this, and nothing moves.
ncclResult_t tuttiPlanDescribe(ncclComm_t comm, const char* collective, size_t count,
                               ncclDataType_t datatype, ncclRedOp_t op, char* buffer,
                               size_t capacity, size_t* needed);

#ifdef __cplusplus
}  // extern "C"
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // TUTTI_TUTTI_H_
