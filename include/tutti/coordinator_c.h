// SPDX-License-Identifier: Apache-2.0
//
// tutti/coordinator_c.h: the coordinator, in plain C. Tensors are asked for by name, in any order;
// the coordinator agrees with the other ranks on an order, fuses small tensors, and carries the
// operations out in the background. tutti/coordinator.h puts C++ around it.
//
// Words
//   A handle is a number for one tensor that was asked for. It is valid from the call that gave it
//   until tuttiCoordinatorRelease. Buffers belong to the caller and must stay, sources unchanged,
//   until the operation is done.
//   A process set is a set of ranks with operations of its own; set 0 is that of all ranks. Sets do
//   not wait for one another.
//
// GPUs
//   Tensors may lie in the memory of a CUDA device, all of a rank's in one. Their operations run on
//   a stream of the coordinator's; each begins when the stream that the tensor names has come to
//   where it was when the tensor was asked for. They are done when they are queued: Wait and Poll
//   wait for ranks, never for GPUs, and tuttiCoordinatorStreamWait orders what comes after. Buffers
//   stay until the GPU is past them.
//
// Threads: every function from any thread. Create, Shutdown, Destroy, AddProcessSet,
// RemoveProcessSet and Wait block; the rest never wait for another rank.
//
// Forks: the child of a fork has none of the threads that serve a coordinator; there every function
// on it returns ncclInvalidUsage and leaves it alone.
//
// Errors: ncclInvalidArgument and ncclInvalidUsage from a call that asks for something say that
// nothing was asked for. The result of an operation comes from Wait: ncclInvalidUsage when the
// ranks disagree about it (the same sentence on all of them, and the job lives on), ncclRemoteError
// and others when a rank is lost or has shut down. tuttiCoordinatorLastError has the sentence.

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
  tuttiOpBroadcast = 2,      // `root` sends, which is a rank of the whole job.
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

// Says what f32 and f64 elements are rounded to while an allreduce or reducescatter moves them.
typedef enum {
  tuttiCompressionNone = 0,
  tuttiCompressionFloat16 = 1,
  tuttiCompressionBfloat16 = 2
} tuttiCompression_t;

// How a rank takes part. `size` is sizeof(tuttiCoordinatorOptions_t).
typedef struct {
  size_t size;
  const ncclUniqueId* id;  // One rank made it (ncclGetUniqueId) and handed it to all.
  int rank;
  int nranks;
  // Where the rank stands on its host, and its host among hosts: for hierarchical operations. All 0
  // where they are not wanted.
  int local_rank;
  int local_size;
  int cross_rank;
  int cross_size;
} tuttiCoordinatorOptions_t;

// One operation on one tensor. `size` is sizeof(tuttiTensor_t); fields that the operation does not
// know are ignored.
typedef struct {
  size_t size;
  const char* name;  // the same on all ranks; not that of a tensor that is still pending
  tuttiOpKind_t kind;
  tuttiElementType_t type;
  int ndim;
  const int64_t* shape;
  const void* input;
  // Where the result goes: `input` or elsewhere. Null leaves the memory to the coordinator, see
  // tuttiCoordinatorOutput; allgather and alltoall, whose sizes are not known beforehand, want
  // that.
  void* output;
  tuttiReduceOp_t op;
  tuttiCompression_t compression;
  double prescale;   // what the input is multiplied by; 1 for nothing
  double postscale;  // what the result is multiplied by
  int root;
  const int64_t* splits;  // alltoall: one a rank of the set; rows beyond their sum go nowhere
  int nsplits;
  int device;  // -1: host memory; else the CUDA device in whose memory input and output lie
  // For a tensor on a GPU, the cudaStream_t (null: the default stream) behind whose present work
  // the input is there and the output may be written.
  void* stream;
} tuttiTensor_t;

// Finds the other ranks; all of them call it, and it returns when all have. Settings are read from
// the environment (docs/settings.md, HOROVOD_...).
ncclResult_t tuttiCoordinatorCreate(tuttiCoordinator_t* coordinator,
                                    const tuttiCoordinatorOptions_t* options);
// Ends all work on all ranks; what is pending anywhere fails. Null is allowed.
ncclResult_t tuttiCoordinatorShutdown(tuttiCoordinator_t coordinator);
// Shuts down where that was not done, and frees everything, results included. Nobody else may be
// using it. Null is allowed.
ncclResult_t tuttiCoordinatorDestroy(tuttiCoordinator_t coordinator);

// Asks for `count` operations in a process set and stores a handle for each. All of them enter the
// queue, or none. With `group` (a name, the same on all ranks) they run together or not at all.
// ncclInvalidArgument for what is wrong in itself, ncclInvalidUsage for a name that is still
// pending.
ncclResult_t tuttiCoordinatorEnqueue(tuttiCoordinator_t coordinator, int process_set,
                                     const tuttiTensor_t* tensors, int count, const char* group,
                                     int64_t* handles);
// This rank brings nothing more: it stands in for others' operations with neutral elements until
// all ranks have joined, when the handle is done.
ncclResult_t tuttiCoordinatorJoin(tuttiCoordinator_t coordinator, int process_set, int64_t* handle);

// *done becomes 1 or 0. Never waits.
ncclResult_t tuttiCoordinatorPoll(tuttiCoordinator_t coordinator, int64_t handle, int* done);
// Waits for the operation and returns its result. `timeout_s` < 0 waits for as long as it takes and
// is the fastest; else ncclInProgress when the time is over.
ncclResult_t tuttiCoordinatorWait(tuttiCoordinator_t coordinator, int64_t handle, double timeout_s);

// The functions up to Release tell the result of an operation that is done (else ncclInvalidUsage).

// Stores where the result lies, in the caller's buffer or in the coordinator's, which lives until
// the handle is released.
ncclResult_t tuttiCoordinatorOutput(tuttiCoordinator_t coordinator, int64_t handle, void** data);
// Stores the number of dimensions, and at most `capacity` of them.
ncclResult_t tuttiCoordinatorOutputShape(tuttiCoordinator_t coordinator, int64_t handle,
                                         int64_t* shape, int capacity, int* ndim);
// Stores how many rows an alltoall has received from each rank of the set, at most `capacity`.
ncclResult_t tuttiCoordinatorReceivedSplits(tuttiCoordinator_t coordinator, int64_t handle,
                                            int64_t* splits, int capacity, int* count);
// Stores the rank that joined last, for a join.
ncclResult_t tuttiCoordinatorLastJoined(tuttiCoordinator_t coordinator, int64_t handle, int* rank);
// Makes what is put on `stream` from now on wait, on the GPU, until the result of an operation on a
// GPU is there. Such an operation is done once it is queued. No thread waits. Whoever uses the
// result on several streams calls it for each, the one that uses a result of the coordinator's
// memory longest last. With tensors in host memory it does nothing.
ncclResult_t tuttiCoordinatorStreamWait(tuttiCoordinator_t coordinator, int64_t handle,
                                        void* stream);
// Forgets the handle. An operation under way goes on; its buffers must stay until it is done.
ncclResult_t tuttiCoordinatorRelease(tuttiCoordinator_t coordinator, int64_t handle);

// Every rank of the job calls these with the same ranks (in any order), or the same set.
ncclResult_t tuttiCoordinatorAddProcessSet(tuttiCoordinator_t coordinator, const int* ranks,
                                           int count, int* process_set);
ncclResult_t tuttiCoordinatorRemoveProcessSet(tuttiCoordinator_t coordinator, int process_set);
// *count ranks; at most `capacity` of them are stored, in ascending order.
ncclResult_t tuttiCoordinatorProcessSetRanks(tuttiCoordinator_t coordinator, int process_set,
                                             int* ranks, int capacity, int* count);

// Writes what happens to a file of Chrome-trace JSON: `path` on rank 0, `path`.N on rank N.
ncclResult_t tuttiCoordinatorStartTimeline(tuttiCoordinator_t coordinator, const char* path,
                                           int mark_rounds);
ncclResult_t tuttiCoordinatorStopTimeline(tuttiCoordinator_t coordinator);

// Numbers of a process set since it began: "rounds", "negotiated_rounds", "round_calls", "batches",
// "tensors", "cached".
ncclResult_t tuttiCoordinatorCounter(tuttiCoordinator_t coordinator, int process_set,
                                     const char* name, uint64_t* value);

// Stores the library that "nccl" means in HOROVOD_GPU_OPERATIONS, in this process: its version as
// ncclGetVersion tells it, and its path, of which at most `capacity` bytes are stored, a zero among
// them. ncclInvalidUsage, with what was looked for, where there is none.
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
