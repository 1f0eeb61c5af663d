// SPDX-License-Identifier: Apache-2.0
//
// tutti/coordinator_c.h: the coordinator, in plain C. A program asks for operations on tensors by
// name, in any order. The coordinator agrees with the other ranks on an order, fuses small tensors,
// and carries the operations out in the background. tutti/coordinator.h is a layer in C++.
//
// Words
//   A handle is a number for one operation on one tensor, valid from the call that stores the
//   handle until tuttiCoordinatorRelease. Buffers belong to the caller and must stay, sources
//   unchanged, until the operation is done.
//   A process set is a set of ranks with operations of its own; set 0 has all ranks. Sets do not
//   wait for one another.
//
// GPUs
//   Tensors may lie in the memory of a CUDA device, all tensors of a rank in the same. Their
//   operations run on a stream of the coordinator. Each operation waits for the work that the
//   tensor's stream had when the operation was asked for. Operations on GPUs are done once queued:
//   Wait and Poll wait for ranks, never for GPUs, and tuttiCoordinatorStreamWait orders later work.
//   Buffers stay until the GPU is past them.
//
// Threads: every function from any thread. Create, Shutdown, Destroy, AddProcessSet,
// RemoveProcessSet and Wait block; the rest never wait for another rank.
//
// Forks: the child of a fork has no threads to serve a coordinator. In the child every function on
// the coordinator returns ncclInvalidUsage and changes nothing.
//
// Errors: ncclInvalidArgument and ncclInvalidUsage from a call that asks for an operation mean that
// no operation was queued. Wait returns the result of an operation: ncclInvalidUsage for a
// disagreement of the ranks (the same sentence on all ranks, and the job lives on), ncclRemoteError
// and others for a rank that is lost or has shut down. tuttiCoordinatorLastError has the sentence.

#ifndef TUTTI_COORDINATOR_C_H_
#define TUTTI_COORDINATOR_C_H_

#include "nccl.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tuttiCoordinator* tuttiCoordinator_t;

typedef enum {
  tuttiOpAllreduce = 0,
  tuttiOpAllgather = 1,      // the first dimension may differ from rank to rank
  tuttiOpBroadcast = 2,      // `root`, a rank of the whole job, sends.
  tuttiOpAlltoall = 3,       // splits[i] rows go to the set's i-th rank
  tuttiOpReducescatter = 4,  // the first dim0 mod n ranks get one row more
  tuttiOpBarrier = 5         // no buffers
} tuttiOpKind_t;

// Horovod's numbers. An integer average is truncated toward zero; a bool's sum is "or".
typedef enum {
  tuttiReduceAverage = 0,
  tuttiReduceSum = 1,
  tuttiReduceAdasum = 2,  // allreduce of floats only
  tuttiReduceMin = 3,
  tuttiReduceMax = 4,
  tuttiReduceProduct = 5
} tuttiReduceOp_t;

typedef enum {
  tuttiUint8 = 0,
  tuttiInt8 = 1,
  tuttiUint16 = 2,
  tuttiInt16 = 3,
  tuttiInt32 = 4,
  tuttiInt64 = 5,
  tuttiFloat16 = 6,
  tuttiFloat32 = 7,
  tuttiFloat64 = 8,
  tuttiBool = 9,
  tuttiBfloat16 = 10,
  tuttiUint32 = 11,
  tuttiUint64 = 12,
  tuttiFloat8e4m3 = 13,
  tuttiFloat8e5m2 = 14
} tuttiElementType_t;

// The type to which f32 and f64 elements are rounded while an allreduce or reducescatter moves
// them.
typedef enum {
  tuttiCompressionNone = 0,
  tuttiCompressionFloat16 = 1,
  tuttiCompressionBfloat16 = 2
} tuttiCompression_t;

// How a rank takes part. `size` is sizeof(tuttiCoordinatorOptions_t).
typedef struct {
  size_t size;
  const ncclUniqueId* id;  // Made by one rank (ncclGetUniqueId) and handed to all.
  int rank;
  int nranks;
  // Where the rank stands on its host, and its host among hosts: for hierarchical operations. All 0
  // where they are not wanted.
  int local_rank;
  int local_size;
  int cross_rank;
  int cross_size;
} tuttiCoordinatorOptions_t;

// One operation on one tensor. `size` is sizeof(tuttiTensor_t); fields without a meaning for the
// operation are ignored.
typedef struct {
  size_t size;
  const char* name;  // the same on all ranks; different from all pending tensors' names
  tuttiOpKind_t kind;
  tuttiElementType_t type;
  int ndim;
  const int64_t* shape;
  const void* input;
  // The place of the result: `input` or elsewhere. Null leaves the memory to the coordinator, see
  // tuttiCoordinatorOutput, as is best for allgather and alltoall, whose sizes are not known
  // beforehand.
  void* output;
  tuttiReduceOp_t op;
  tuttiCompression_t compression;
  double prescale;   // the factor of the input; 1 for none
  double postscale;  // the factor of the result
  int root;
  const int64_t* splits;  // alltoall: one a rank of the set; rows beyond their sum are not sent
  int nsplits;
  int device;  // -1: host memory; else the CUDA device in whose memory input and output lie
  // For a tensor on a GPU, the cudaStream_t (null: the default stream) whose present work produces
  // the input and frees the output.
  void* stream;
} tuttiTensor_t;

// Finds the other ranks. All ranks make the call, and it returns after the last of them. Settings
// are read from the environment (docs/settings.md, HOROVOD_...).
ncclResult_t tuttiCoordinatorCreate(tuttiCoordinator_t* coordinator,
                                    const tuttiCoordinatorOptions_t* options);
// Ends all work on all ranks; pending operations of all ranks fail. Null is allowed.
ncclResult_t tuttiCoordinatorShutdown(tuttiCoordinator_t coordinator);
// Shuts down if necessary, and frees everything, results included. No thread may be using the
// coordinator. Null is allowed.
ncclResult_t tuttiCoordinatorDestroy(tuttiCoordinator_t coordinator);

// Asks for `count` operations in a process set and stores a handle for each. All of them enter the
// queue, or none. Operations with the same `group` (a name, the same on all ranks) run together or
// not at all. ncclInvalidArgument for invalid arguments, ncclInvalidUsage for a pending name.
ncclResult_t tuttiCoordinatorEnqueue(tuttiCoordinator_t coordinator, int process_set,
                                     const tuttiTensor_t* tensors, int count, const char* group,
                                     int64_t* handles);
// This rank brings nothing more: it takes part in operations of other ranks with neutral elements
// until all ranks have joined, when the handle is done.
ncclResult_t tuttiCoordinatorJoin(tuttiCoordinator_t coordinator, int process_set, int64_t* handle);

// *done becomes 1 or 0. Never waits.
ncclResult_t tuttiCoordinatorPoll(tuttiCoordinator_t coordinator, int64_t handle, int* done);
// Waits for the operation and returns its result. `timeout_s` < 0 waits without a limit and is the
// fastest; else ncclInProgress after the timeout.
ncclResult_t tuttiCoordinatorWait(tuttiCoordinator_t coordinator, int64_t handle, double timeout_s);

// The functions up to Release return the result of a finished operation (else ncclInvalidUsage).

// Stores the address of the result, in the caller's buffer or in the coordinator's, which lives
// until the handle is released.
ncclResult_t tuttiCoordinatorOutput(tuttiCoordinator_t coordinator, int64_t handle, void** data);
// Stores the number of dimensions, and at most `capacity` of them.
ncclResult_t tuttiCoordinatorOutputShape(tuttiCoordinator_t coordinator, int64_t handle,
                                         int64_t* shape, int capacity, int* ndim);
// Stores how many rows an alltoall has received from each rank of the set, at most `capacity`.
ncclResult_t tuttiCoordinatorReceivedSplits(tuttiCoordinator_t coordinator, int64_t handle,
                                            int64_t* splits, int capacity, int* count);
// Stores the last rank to join, for a join.
ncclResult_t tuttiCoordinatorLastJoined(tuttiCoordinator_t coordinator, int64_t handle, int* rank);
// Makes later work of `stream` wait, on the GPU, for the result of an operation on a GPU. Such an
// operation is done once queued. No thread waits. A program that uses the result on several streams
// makes the call for each. The last call is for the stream that uses a result in the coordinator's
// memory longest. The call does nothing for tensors in host memory.
ncclResult_t tuttiCoordinatorStreamWait(tuttiCoordinator_t coordinator, int64_t handle,
                                        void* stream);
// Forgets the handle. An operation under way goes on, and its buffers must stay until its end.
ncclResult_t tuttiCoordinatorRelease(tuttiCoordinator_t coordinator, int64_t handle);

// Every rank of the job makes the calls with the same ranks (in any order), or the same set.
ncclResult_t tuttiCoordinatorAddProcessSet(tuttiCoordinator_t coordinator, const int* ranks,
                                           int count, int* process_set);
ncclResult_t tuttiCoordinatorRemoveProcessSet(tuttiCoordinator_t coordinator, int process_set);
// *count ranks; at most `capacity` of them are stored, in ascending order.
ncclResult_t tuttiCoordinatorProcessSetRanks(tuttiCoordinator_t coordinator, int process_set,
                                             int* ranks, int capacity, int* count);

// Writes a timeline to a file of Chrome-trace JSON: `path` on rank 0, `path`.N on rank N.
ncclResult_t tuttiCoordinatorStartTimeline(tuttiCoordinator_t coordinator, const char* path,
                                           int mark_rounds);
ncclResult_t tuttiCoordinatorStopTimeline(tuttiCoordinator_t coordinator);

// Numbers of a process set since its beginning: "rounds", "negotiated_rounds", "round_calls",
// "batches", "tensors", "cached".
ncclResult_t tuttiCoordinatorCounter(tuttiCoordinator_t coordinator, int process_set,
                                     const char* name, uint64_t* value);

// Stores the meaning of "nccl" in HOROVOD_GPU_OPERATIONS, in this process: the library's version,
// as from ncclGetVersion, and its path, of which at most `capacity` bytes are stored, a zero among
// them. ncclInvalidUsage, with the places searched, without a library.
ncclResult_t tuttiCoordinatorFindNccl(int* version, char* path, size_t capacity);

// Returns the sentence of this thread's last failed call in this header; "" before the first.
const char* tuttiCoordinatorLastError(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // TUTTI_COORDINATOR_C_H_
