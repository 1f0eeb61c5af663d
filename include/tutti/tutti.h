// SPDX-License-Identifier: Apache-2.0
//
// tutti/tutti.h: what NCCL has no word for. Host streams and events, collectives whose ranks bring
// different amounts, a barrier, and functions that say in words what the library is and does. Plain
// C, beside nccl.h.
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
// Which device a rank is
// -------------------------------------------------------------------------------------------------

// ncclCommInitRank of a rank on `device`: a CUDA device, whichever is current, or -1 for the host's
// memory, also on a machine with GPUs. All ranks of a communicator are of one kind. With
// TUTTI_BACKEND=host there are no ranks on CUDA devices (ncclInvalidUsage).
ncclResult_t tuttiCommInitRankOn(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                 int device);

// -------------------------------------------------------------------------------------------------
// Wishes for a communicator that ncclConfig_t has no field for
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
  double timeoutSeconds;  // In TUTTI_TIMEOUT_S's place; 0: as that says. May differ per rank.
} tuttiConfig_t;

#define TUTTI_CONFIG_MAGIC 0x74757474u
#define TUTTI_CONFIG_INITIALIZER \
  { sizeof(tuttiConfig_t), TUTTI_CONFIG_MAGIC, NCCL_CONFIG_UNDEF_INT, NCCL_CONFIG_UNDEF_INT, 0 }

// ncclCommInitRankConfig with wishes of both kinds. Either may be null. Communicators that are
// split, shrunk or grown from this one inherit them; ranks that join by ncclCommGrow must have been
// given TUTTI_DETERMINISTIC=1 where the others are deterministic.
ncclResult_t tuttiCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config, const tuttiConfig_t* tuttiConfig);

// -------------------------------------------------------------------------------------------------
// Wishes for one call that ncclCollConfig_t has no field for
//
// An option in the list `ext` of an ncclCollConfig_t, with key.vendorId TUTTI_VENDOR_ID and one of
// these as key.optionId. All ranks give the same. ncclInvalidArgument for an option that this
// release does not know, or a value out of range.
// -------------------------------------------------------------------------------------------------

#define TUTTI_VENDOR_ID 0x747574

typedef enum {
  // val.i = 1: the reduction gives the bits that a communicator with `deterministic` would give.
  // ncclInvalidUsage between GPUs of which not all reach one another's memory, unless the
  // communicator was made so.
  tuttiCallDeterministic = 1,
  // val.i: milliseconds, at least 1, in TUTTI_TIMEOUT_S's place. Host ranks only, else
  // ncclInvalidUsage.
  tuttiCallTimeoutMs = 2
} tuttiCallOption_t;

// -------------------------------------------------------------------------------------------------
// Host streams
//
// A host stream is a queue of operations that one thread of the library runs in order, so that the
// caller can do something else meanwhile. It stands wherever a cudaStream_t does in nccl.h, with
// host ranks; CUDA's own functions do not know it. The caller owns it. Any thread may use it.
//
// The null stream is the calling thread itself: every operation on it is done when the call
// returns, so that it is always idle.
// -------------------------------------------------------------------------------------------------

typedef cudaStream_t tuttiStream_t;

// Makes an empty stream and its thread. The thread sleeps while the stream is empty.
ncclResult_t tuttiStreamCreate(tuttiStream_t* stream);

// Waits until the stream is empty, then frees it. Nobody else may be using it, nor may a function
// that the stream runs call this (ncclInvalidUsage). Null is allowed.
ncclResult_t tuttiStreamDestroy(tuttiStream_t stream);

// Waits until everything queued before this call is done. Returns the first error of an operation
// on the stream since the last tuttiStreamSynchronize, and forgets it; ncclSuccess if there was
// none.
ncclResult_t tuttiStreamSynchronize(tuttiStream_t stream);

// ncclSuccess where the stream is empty, ncclInProgress where it is not. Never waits.
ncclResult_t tuttiStreamQuery(tuttiStream_t stream);

// Queues `fn(arg)`; it runs on the stream's thread after what was queued before (on the null
// stream: now). It must not wait for this stream. What `arg` points to stays the caller's.
typedef void (*tuttiHostFn_t)(void* arg);
ncclResult_t tuttiStreamLaunchHostFunc(tuttiStream_t stream, tuttiHostFn_t fn, void* arg);

// -------------------------------------------------------------------------------------------------
// Host events
//
// An event marks a point in a stream. It is done when the stream has come past the point where it
// was last recorded; an event that was never recorded counts as done. The caller owns it and keeps
// it until the last stream that records it or waits for it has done so. Any thread may use it.
// -------------------------------------------------------------------------------------------------

typedef struct tuttiEvent* tuttiEvent_t;

ncclResult_t tuttiEventCreate(tuttiEvent_t* event);

// Null is allowed.
ncclResult_t tuttiEventDestroy(tuttiEvent_t event);

// Marks the end of what `stream` holds now (the null stream: the present moment).
ncclResult_t tuttiEventRecord(tuttiEvent_t event, tuttiStream_t stream);

// Makes what is queued on `stream` from now on wait for the event as last recorded (the null
// stream: the caller waits). Waiting for an event of the same stream does nothing.
ncclResult_t tuttiStreamWaitEvent(tuttiStream_t stream, tuttiEvent_t event);

// Waits until the event is done.
ncclResult_t tuttiEventSynchronize(tuttiEvent_t event);

// ncclSuccess where the event is done, ncclInProgress where it is not. Never waits.
ncclResult_t tuttiEventQuery(tuttiEvent_t event);

// Stores the milliseconds from `start` to `end`, on the monotonic clock. Both have been recorded
// (else ncclInvalidUsage) and are done (else ncclInProgress).
ncclResult_t tuttiEventElapsedTime(double* elapsed_ms, tuttiEvent_t start, tuttiEvent_t end);

// -------------------------------------------------------------------------------------------------
// Collectives with a size per rank
//
// Arrays of counts and displacements have one entry per rank, are read before the call returns, and
// remain the caller's. An entry may be 0. The operation runs on `stream` like those of nccl.h, in
// groups too. Except in place, as each function says, buffers must not overlap, and neither may
// blocks that are written.
// -------------------------------------------------------------------------------------------------

// recvbuff on all ranks: recvcounts[i] elements at recvbuff + displs[i] = sendbuff of rank i.
// `recvcounts` is the same on all ranks and sendcount == recvcounts[rank]; `displs` may differ, and
// where null the blocks lie one after another. In place: sendbuff == recvbuff + displs[rank].
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

// Queues one allreduce of `nbuffs` vectors that count as one, as if they lay end to end:
// recvbuffs[i] [counts[i]] = reduction over all ranks of sendbuffs[i] [counts[i]]. Ranks bring
// equally many elements in all; how many buffers they lie in is each rank's own business. The
// arrays are read before the call returns; a count may be 0. In place: sendbuffs[i] ==
// recvbuffs[i]. Much faster than `nbuffs` calls, and on one machine than packing small vectors into
// a large one.
ncclResult_t tuttiAllReduceMany(const void* const* sendbuffs, void* const* recvbuffs,
                                const size_t* counts, size_t nbuffs, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

// Done on a rank only after every rank of `comm` has begun it.
ncclResult_t tuttiBarrier(ncclComm_t comm, cudaStream_t stream);

// -------------------------------------------------------------------------------------------------
// The arithmetic of Adasum
//
// Adasum adds vectors and counts only once what they have in common:
//
//   adasum(a, b) = (1 - a·b / 2 a·a) a + (1 - a·b / 2 b·b) b
//
// These are its steps on one device, for `n` tensors at a time, each by itself; a caller moves the
// vectors and dot products of ranks between them, as the coordinator does (docs/coordinator.md).
// `device` is the CUDA device in whose memory everything lies, or -1 for the host's, and the work
// is queued on `stream`, a stream of that device. Arrays of counts and of pointers are read before
// the call returns. Groups do not hold the work back. A count may be 0. Elements lie at addresses
// that are multiples of their size. Sums are taken in f64, in an order that depends on the counts
// alone: hosts and GPUs give the same bits. ncclInvalidUsage where the library has no code for the
// device.
// -------------------------------------------------------------------------------------------------

// to[i][j] = from[i][j] * factor, for j below counts[i]: from tensors to vectors, or from vectors
// to tensors. Vectors are f64 of tensors of f64, and f32 of those of other floats, and are what the
// factor is rounded to. A null from[i] stands for a tensor of zeros. What is read and what is
// written must not overlap.
ncclResult_t tuttiAdasumConvert(const void* const* from, ncclDataType_t fromType, void* const* to,
                                ncclDataType_t toType, const size_t* counts, size_t n,
                                double factor, int device, cudaStream_t stream);

// What Adasum has to know of two vectors: a·b, a·a and b·b.
#define TUTTI_ADASUM_DOTS 3
// tuttiAdasumDots needs so many numbers for each tensor, besides the result.
#define TUTTI_ADASUM_SCRATCH 384

// dots[3 * i], dots[3 * i + 1], dots[3 * i + 2] = a·b, a·a, b·b of tensor i, of which there are
// counts[i] elements, one tensor's after another's in `a` and in `b`. `datatype` is f32 or f64.
ncclResult_t tuttiAdasumDots(const void* a, const void* b, const size_t* counts, size_t n,
                             ncclDataType_t datatype, double* dots, double* scratch, int device,
                             cudaStream_t stream);

// dots[j] = all[j] + all[3 * n + j] + all[6 * n + j] + ..., for j below 3 * n: the sum of the dot
// products of `n` tensors that `narrays` ranks have, of different parts of the vectors. `dots` may
// be `all`.
ncclResult_t tuttiAdasumSumDots(const double* all, size_t narrays, size_t n, double* dots,
                                int device, cudaStream_t stream);

// out = adasum(a, b) for each tensor, by its dot products. `out` may be `a` or `b`.
ncclResult_t tuttiAdasumCombine(const void* a, const void* b, void* out, const size_t* counts,
                                size_t n, ncclDataType_t datatype, const double* dots, int device,
                                cudaStream_t stream);

// -------------------------------------------------------------------------------------------------
// Asking in words
//
// Text for people is written to buffer[capacity], cut where it does not fit, and always ends in a
// zero byte. *needed (where `needed` is not null) is the capacity that holds all of it, so that a
// first call may pass buffer = NULL with capacity 0. A cut text is still ncclSuccess.
// -------------------------------------------------------------------------------------------------

// Stores a JSON object about `comm` as this rank sees it: rank, ranks, hosts, and the transport
// that joins it to each peer: "self", "shm", "gpu", or the name of the network ("Socket", "IB", or
// what a plugin calls itself).
ncclResult_t tuttiCommDescribe(ncclComm_t comm, char* buffer, size_t capacity, size_t* needed);

// Stores which ranks `comm` has lost: their processes ended, their hosts are out of reach, or the
// others go on without them because a connection broke. Stores the first `capacity` of them in
// `ranks`, in rising order, and their number in `*count`; `ranks` may be null when `capacity` is 0.
// The ranks that are left agree: once an operation of `comm` has failed with ncclRemoteError for a
// loss, all of them get the same ranks, and the list is what to pass to ncclCommShrink with
// NCCL_SHRINK_ABORT. It only grows, when more ranks are lost later. A rank that lives and that the
// others go on without finds itself in its list. Any thread; also after a failure, until `comm` is
// destroyed.
ncclResult_t tuttiCommGetLostRanks(ncclComm_t comm, int* ranks, int capacity, int* count);

// Stores how `comm` would run a collective of `count` elements: the algorithm and protocol, per
// channel the work, per connection the proxy operations. `collective` is "AllReduce", "Reduce",
// "Broadcast", "AllGather", "ReduceScatter", "AlltoAll", "Gather" or "Scatter", with `count` as in
// the function of that name, out of place, root 0; an unknown name, or more than 2^44 bytes, is
// ncclInvalidArgument. `op` is ignored by those that do not reduce. Local: no other rank need call
// it, and nothing moves.
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
