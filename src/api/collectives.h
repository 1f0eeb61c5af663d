#pragma once

// The collectives of nccl.h, as called by their functions with and without a configuration. Each
// checks its arguments and hands the operation to the thread's group.

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "nccl.h"
#include "plan/task.h"

namespace tutti::api {

// Returns the effect of a reduction by `op` on elements of a type. InvalidArgument where `op` is no
// operator of the communicator, or an operator for another type.
Result<ReduceOp> ResolveOp(ncclComm* comm, ncclRedOp_t op, DataType type);

// The common arguments of all collectives.
struct CollectiveCall {
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // Counts as in NCCL; see Task.
  ncclDataType_t type = ncclInt8;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  CallWishes wishes = {};
  uint64_t profiler_tag = 0;
  cudaEvent_t launch_event = nullptr;  // A tuttiEvent_t where the ranks are on hosts.
};

Status AllReduce(const CollectiveCall& call, ncclRedOp_t op);
Status Reduce(const CollectiveCall& call, ncclRedOp_t op, int root);
Status Broadcast(const CollectiveCall& call, int root);
Status AllGather(const CollectiveCall& call);
Status ReduceScatter(const CollectiveCall& call, ncclRedOp_t op);
Status AlltoAll(const CollectiveCall& call);
Status Gather(const CollectiveCall& call, int root);
Status Scatter(const CollectiveCall& call, int root);

}  // namespace tutti::api
