// The collectives and point-to-point calls. Arguments are checked here; everything else happens in
// comm.

#include "api/collectives.h"

#include <memory>
#include <utility>

#include "api/context.h"
#include "comm/group.h"
#include "nccl.h"
#include "tutti/tutti.h"

namespace tutti::api {
namespace {

// Refuses a count for which no memory is large enough. The larger buffer of the call holds `count`
// elements `copies` times.
Status CheckCount(size_t count, DataType type, int copies) {
  if (count >= kAddressSpace / SizeOf(type) / static_cast<size_t>(copies))
    return InvalidArgument("a count of {} elements of {} is more than an address space holds",
                           count, Name(type));
  return Status::Ok();
}

// Does the same as CheckTyped without a sentence, at no cost.
bool IsBuffer(const void* buffer, size_t bytes) {
  return buffer != nullptr && FitsAddressSpace(buffer, bytes);
}

// Checks a buffer of at least `count` elements. Any address will do: NCCL refuses none either, and
// the kernels of hosts and GPUs take elements that are not aligned.
Status CheckTyped(const void* buffer, size_t count, DataType type, const char* what) {
  if (buffer == nullptr) return InvalidArgument("{} is null", what);
  return CheckExtent(buffer, count * SizeOf(type), what);
}

// Says which ranks use a buffer of a call.
enum class UsedBy { kAll, kRoot, kNobody };

struct Call {
  ncclComm_t comm;
  cudaStream_t stream;
  ncclDataType_t type;
  UsedBy send = UsedBy::kAll;
  UsedBy recv = UsedBy::kAll;
  bool per_rank = false;  // the larger buffer holds `count` elements for each rank, not once

  bool NeedsSend(const CollectiveTask& task) const { return Needs(send, task); }
  bool NeedsRecv(const CollectiveTask& task) const { return Needs(recv, task); }
  bool Needs(UsedBy used_by, const CollectiveTask& task) const {
    return used_by == UsedBy::kAll || (used_by == UsedBy::kRoot && comm->comm->rank() == task.root);
  }
};

Status CheckRoot(int root, int num_ranks, const char* what) {
  if (root < 0 || root >= num_ranks)
    return InvalidArgument("the {} is {}, but the communicator has ranks 0 to {}", what, root,
                           num_ranks - 1);
  return Status::Ok();
}

// Checks a buffer of which `count` elements are used. Any buffer will do without elements.
// NCCL_CHECK_POINTERS refuses buffers that are not memory of this process.
Status CheckUsed(const ncclComm& comm, const void* buffer, size_t count, DataType type,
                 bool is_send) {
  if (count == 0) return Status::Ok();
  const size_t bytes = count * SizeOf(type);
  if (!IsBuffer(buffer, bytes)) [[unlikely]]
    return CheckTyped(buffer, count, type, is_send ? "the send buffer" : "the receive buffer");
  if (!comm.settings.check_pointers) [[likely]]
    return Status::Ok();
  return comm.comm->operations().CheckBuffer(buffer, bytes,
                                             is_send ? "send buffer" : "receive buffer");
}

// Resolves the caller's event. The ranks of hosts have events of this library.
Status ResolveLaunchEvent(const Operations& operations, CollectiveTask& task) {
  const auto event = static_cast<cudaEvent_t>(task.extras->launch_event);
  if (operations.hand_over() == HandOver::kOnStream) return CheckCudaEvent(event);
  CallExtras extras = *task.extras;
  extras.launch_event = nullptr;
  TUTTI_ASSIGN(extras.on_begin, RecordBegin(event));
  task.extras = std::make_shared<const CallExtras>(std::move(extras));
  return Status::Ok();
}

// Checks the common arguments of all operations and issues the task. `op` is the operator of a
// reduction.
Status Submit(const Call& call, CollectiveTask task, const ncclRedOp_t* op = nullptr) {
  const HandleUse use(call.comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(call.type));
  task.type = static_cast<DataType>(call.type);
  if (op != nullptr) {
    TUTTI_ASSIGN(task.op, ResolveOp(call.comm, *op, task.type));
  }
  const int num_ranks = use->comm->num_ranks();
  TUTTI_TRY(CheckCount(task.count, task.type, call.per_rank ? num_ranks : 1));
  if (task.has_root()) TUTTI_TRY(CheckRoot(task.root, num_ranks, "root"));
  // Of a buffer with `count` elements for each rank only the first `count` are looked at. The
  // buffers of a collective with parts have been checked.
  if (call.NeedsSend(task))
    TUTTI_TRY(CheckUsed(*call.comm, task.send, task.count, task.type, true));
  if (call.NeedsRecv(task))
    TUTTI_TRY(CheckUsed(*call.comm, task.recv, task.count, task.type, false));
  if (task.wishes != CallWishes()) [[unlikely]]
    TUTTI_TRY(use->comm->operations().CheckWishes(task));
  if (task.extras && task.extras->launch_event != nullptr) [[unlikely]]
    TUTTI_TRY(ResolveLaunchEvent(use->comm->operations(), task));
  TUTTI_ASSIGN(void* const stream, StreamFor(use->comm->operations(), call.stream));
  return ThreadGroup().Add(*call.comm, {std::move(task), stream});
}

// Checks a send or a receive and issues it.
Status Submit(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type, MessageTask message) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  message.type = static_cast<DataType>(type);
  TUTTI_TRY(CheckCount(message.count, message.type, 1));
  TUTTI_TRY(CheckRoot(message.peer, use->comm->num_ranks(), "peer"));
  TUTTI_TRY(CheckUsed(*comm, message.buffer, message.count, message.type, message.is_send));
  TUTTI_ASSIGN(void* const resolved, StreamFor(use->comm->operations(), stream));
  return ThreadGroup().Add(*comm, {message, resolved});
}

// Copies the counts of all ranks and their displacements, and refuses parts that no memory holds.
// Without displacements the parts lie one behind the last.
Status ReadParts(int num_ranks, const size_t* counts, const size_t* offsets, DataType type,
                 const char* what, RankParts& parts) {
  if (counts == nullptr) return InvalidArgument("{} is null", what);
  size_t total = 0;
  for (int r = 0; r < num_ranks; ++r) {
    const size_t offset = offsets != nullptr ? offsets[r] : total;
    TUTTI_TRY(CheckCount(counts[r], type, 1));
    TUTTI_TRY(CheckCount(offset, type, 1));
    TUTTI_TRY(CheckCount(offset + counts[r], type, 1));
    TUTTI_TRY(CheckCount(total += counts[r], type, 1));
    parts.counts.push_back(counts[r]);
    parts.offsets.push_back(offset);
  }
  return Status::Ok();
}

Status AllGatherV(const void* send, size_t send_count, void* recv, const size_t* counts,
                  const size_t* offsets, ncclDataType_t type, ncclComm_t comm,
                  cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  const auto checked = static_cast<DataType>(type);
  auto parts = std::make_shared<VariableParts>();
  TUTTI_TRY(
      ReadParts(comm->comm->num_ranks(), counts, offsets, checked, "recvcounts", parts->recvs));
  const size_t mine = parts->recvs.Size(comm->comm->rank());
  if (mine != send_count)
    return InvalidArgument("sendcount is {}, but recvcounts says {} for this rank, {}", send_count,
                           mine, comm->comm->rank());
  TUTTI_TRY(CheckUsed(*comm, send, send_count, checked, true));
  TUTTI_TRY(CheckUsed(*comm, recv, parts->recvs.End(), checked, false));
  CollectiveTask task = {.collective = Collective::kAllGatherV, .send = send, .recv = recv};
  task.parts = std::move(parts);
  return Submit({comm, stream, type}, std::move(task));
}

Status ReduceScatterV(const void* send, void* recv, const size_t* counts, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  const auto checked = static_cast<DataType>(type);
  auto parts = std::make_shared<VariableParts>();
  TUTTI_TRY(
      ReadParts(comm->comm->num_ranks(), counts, nullptr, checked, "recvcounts", parts->recvs));
  TUTTI_TRY(CheckUsed(*comm, send, parts->recvs.End(), checked, true));
  TUTTI_TRY(CheckUsed(*comm, recv, parts->recvs.Size(comm->comm->rank()), checked, false));
  CollectiveTask task = {.collective = Collective::kReduceScatterV, .send = send, .recv = recv};
  task.parts = std::move(parts);
  return Submit({comm, stream, type}, std::move(task), &op);
}

Status AllReduceMany(const void* const* sends, void* const* recvs, const size_t* counts, size_t n,
                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  if (n > 0 && (sends == nullptr || recvs == nullptr || counts == nullptr))
    return InvalidArgument("sendbuffs, recvbuffs or counts is null");
  const auto checked = static_cast<DataType>(type);
  auto buffers = std::make_shared<ScatteredBuffers>();
  buffers->inputs.reserve(n);
  buffers->outputs.reserve(n);
  buffers->starts.reserve(n + 1);
  for (size_t i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;
    TUTTI_TRY(CheckCount(counts[i], checked, 1));
    TUTTI_TRY(CheckCount(counts[i] + buffers->count(), checked, 1));
    TUTTI_TRY(CheckUsed(*comm, sends[i], counts[i], checked, true));
    TUTTI_TRY(CheckUsed(*comm, recvs[i], counts[i], checked, false));
    buffers->Append(static_cast<const std::byte*>(sends[i]), static_cast<std::byte*>(recvs[i]),
                    counts[i], SizeOf(checked));
  }
  CollectiveTask task = {.collective = Collective::kAllReduce, .count = buffers->count()};
  task.scattered = std::move(buffers);
  return Submit({comm, stream, type, UsedBy::kNobody, UsedBy::kNobody}, std::move(task), &op);
}

// Checks the parts that a rank sends to each rank and receives from each rank, and issues the task.
Status SubmitPairs(const Call& call, CollectiveTask task, std::shared_ptr<VariableParts> parts) {
  const auto type = static_cast<DataType>(call.type);
  const RankParts &sends = parts->sends, &recvs = parts->recvs;
  const int self = call.comm->comm->rank();
  if (sends.Size(self) != recvs.Size(self))
    return InvalidArgument("this rank sends itself {} elements and receives {}", sends.Size(self),
                           recvs.Size(self));
  TUTTI_TRY(CheckUsed(*call.comm, task.send, sends.End(), type, true));
  TUTTI_TRY(CheckUsed(*call.comm, task.recv, recvs.End(), type, false));
  task.parts = std::move(parts);
  return Submit(call, std::move(task));
}

Status AlltoAllV(const void* send, const size_t* send_counts, const size_t* send_offsets,
                 void* recv, const size_t* recv_counts, const size_t* recv_offsets,
                 ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  const auto checked = static_cast<DataType>(type);
  auto parts = std::make_shared<VariableParts>();
  const int n = comm->comm->num_ranks();
  TUTTI_TRY(ReadParts(n, send_counts, send_offsets, checked, "sendcounts", parts->sends));
  TUTTI_TRY(ReadParts(n, recv_counts, recv_offsets, checked, "recvcounts", parts->recvs));
  return SubmitPairs({comm, stream, type},
                     {.collective = Collective::kAlltoAllV, .send = send, .recv = recv},
                     std::move(parts));
}

// Issues a GatherV or a ScatterV. The root's larger buffer has a part for each rank, of which only
// the root knows all; `own_count` is the length of the part of the calling rank.
Status MoveParts(const Call& call, CollectiveTask task, size_t own_count, const size_t* counts,
                 const size_t* offsets) {
  const HandleUse use(call.comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(call.type));
  const auto type = static_cast<DataType>(call.type);
  const int n = use->comm->num_ranks();
  TUTTI_TRY(CheckRoot(task.root, n, "root"));
  TUTTI_TRY(CheckCount(own_count, type, 1));
  const bool gathers = task.collective == Collective::kGatherV;
  auto parts = std::make_shared<VariableParts>();
  RankParts& own = gathers ? parts->sends : parts->recvs;
  RankParts& all = gathers ? parts->recvs : parts->sends;
  own.counts.resize(static_cast<size_t>(n));
  own.offsets.resize(static_cast<size_t>(n));
  if (use->comm->rank() == task.root)
    TUTTI_TRY(ReadParts(n, counts, offsets, type, gathers ? "recvcounts" : "sendcounts", all));
  else
    all = own;
  own.counts[static_cast<size_t>(task.root)] = own_count;
  return SubmitPairs(call, std::move(task), std::move(parts));
}

std::shared_ptr<const CallExtras> ExtrasOf(const CollectiveCall& call) {
  if (call.profiler_tag == 0 && call.launch_event == nullptr) [[likely]]
    return nullptr;
  return std::make_shared<const CallExtras>(
      CallExtras{.profiler_tag = call.profiler_tag, .launch_event = call.launch_event});
}

// Returns the task of a collective, without an operator and a root.
CollectiveTask TaskOf(Collective collective, const CollectiveCall& call) {
  return {.collective = collective,
          .send = call.send,
          .recv = call.recv,
          .count = call.count,
          .wishes = call.wishes,
          .extras = ExtrasOf(call)};
}

}  // namespace

Status AllReduce(const CollectiveCall& call, ncclRedOp_t op) {
  return Submit({call.comm, call.stream, call.type}, TaskOf(Collective::kAllReduce, call), &op);
}

Status Reduce(const CollectiveCall& call, ncclRedOp_t op, int root) {
  CollectiveTask task = TaskOf(Collective::kReduce, call);
  task.root = root;
  return Submit({call.comm, call.stream, call.type, UsedBy::kAll, UsedBy::kRoot}, std::move(task),
                &op);
}

Status Broadcast(const CollectiveCall& call, int root) {
  CollectiveTask task = TaskOf(Collective::kBroadcast, call);
  task.root = root;
  return Submit({call.comm, call.stream, call.type, UsedBy::kRoot, UsedBy::kAll}, std::move(task));
}

Status AllGather(const CollectiveCall& call) {
  return Submit({call.comm, call.stream, call.type, UsedBy::kAll, UsedBy::kAll, true},
                TaskOf(Collective::kAllGather, call));
}

Status ReduceScatter(const CollectiveCall& call, ncclRedOp_t op) {
  return Submit({call.comm, call.stream, call.type, UsedBy::kAll, UsedBy::kAll, true},
                TaskOf(Collective::kReduceScatter, call), &op);
}

Status AlltoAll(const CollectiveCall& call) {
  return Submit({call.comm, call.stream, call.type, UsedBy::kAll, UsedBy::kAll, true},
                TaskOf(Collective::kAlltoAll, call));
}

Status Gather(const CollectiveCall& call, int root) {
  CollectiveTask task = TaskOf(Collective::kGather, call);
  task.root = root;
  return Submit({call.comm, call.stream, call.type, UsedBy::kAll, UsedBy::kRoot, true},
                std::move(task));
}

Status Scatter(const CollectiveCall& call, int root) {
  CollectiveTask task = TaskOf(Collective::kScatter, call);
  task.root = root;
  return Submit({call.comm, call.stream, call.type, UsedBy::kRoot, UsedBy::kAll, true},
                std::move(task));
}

}  // namespace tutti::api

using namespace tutti;  // NOLINT(google-build-using-namespace): the C API below is outside of it
using api::Return;

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::AllReduce({sendbuff, recvbuff, count, datatype, comm, stream}, op);
  });
}

ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::Reduce({sendbuff, recvbuff, count, datatype, comm, stream}, op, root);
  });
}

ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::Broadcast({sendbuff, recvbuff, count, datatype, comm, stream}, root);
  });
}

ncclResult_t ncclBcast(void* buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::AllGather({sendbuff, recvbuff, sendcount, datatype, comm, stream});
  });
}

ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::ReduceScatter({sendbuff, recvbuff, recvcount, datatype, comm, stream}, op);
  });
}

ncclResult_t ncclAlltoAll(const void* sendbuff, void* recvbuff, size_t count,
                          ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::AlltoAll({sendbuff, recvbuff, count, datatype, comm, stream});
  });
}

ncclResult_t ncclGather(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::Gather({sendbuff, recvbuff, count, datatype, comm, stream}, root);
  });
}

ncclResult_t ncclScatter(const void* sendbuff, void* recvbuff, size_t count,
                         ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::Scatter({sendbuff, recvbuff, count, datatype, comm, stream}, root);
  });
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  auto* const buffer = static_cast<std::byte*>(const_cast<void*>(sendbuff));
  return Return(__func__, [&] {
    return api::Submit(comm, stream, datatype, {true, peer, buffer, count});
  });
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  auto* const buffer = static_cast<std::byte*>(recvbuff);
  return Return(__func__, [&] {
    return api::Submit(comm, stream, datatype, {false, peer, buffer, count});
  });
}

ncclResult_t tuttiAllGatherV(const void* sendbuff, size_t sendcount, void* recvbuff,
                             const size_t* recvcounts, const size_t* displs,
                             ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::AllGatherV(sendbuff, sendcount, recvbuff, recvcounts, displs, datatype, comm,
                           stream);
  });
}

ncclResult_t tuttiReduceScatterV(const void* sendbuff, void* recvbuff, const size_t* recvcounts,
                                 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                 cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::ReduceScatterV(sendbuff, recvbuff, recvcounts, datatype, op, comm, stream);
  });
}

ncclResult_t tuttiAlltoAllV(const void* sendbuff, const size_t* sendcounts, const size_t* sdispls,
                            void* recvbuff, const size_t* recvcounts, const size_t* rdispls,
                            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::AlltoAllV(sendbuff, sendcounts, sdispls, recvbuff, recvcounts, rdispls, datatype,
                          comm, stream);
  });
}

ncclResult_t tuttiGatherV(const void* sendbuff, size_t sendcount, void* recvbuff,
                          const size_t* recvcounts, const size_t* displs, ncclDataType_t datatype,
                          int root, ncclComm_t comm, cudaStream_t stream) {
  const CollectiveTask task = {
      .collective = Collective::kGatherV, .send = sendbuff, .recv = recvbuff, .root = root};
  return Return(__func__, [&] {
    return api::MoveParts({comm, stream, datatype}, task, sendcount, recvcounts, displs);
  });
}

ncclResult_t tuttiScatterV(const void* sendbuff, const size_t* sendcounts, const size_t* displs,
                           void* recvbuff, size_t recvcount, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const CollectiveTask task = {
      .collective = Collective::kScatterV, .send = sendbuff, .recv = recvbuff, .root = root};
  return Return(__func__, [&] {
    return api::MoveParts({comm, stream, datatype}, task, recvcount, sendcounts, displs);
  });
}

ncclResult_t tuttiAllReduceMany(const void* const* sendbuffs, void* const* recvbuffs,
                                const size_t* counts, size_t nbuffs, ncclDataType_t datatype,
                                ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return api::AllReduceMany(sendbuffs, recvbuffs, counts, nbuffs, datatype, op, comm, stream);
  });
}

ncclResult_t tuttiBarrier(ncclComm_t comm, cudaStream_t stream) {
  const CollectiveTask task = {.collective = Collective::kBarrier};
  return Return(__func__, [&] { return api::Submit({comm, stream, ncclInt8}, task); });
}

TUTTI_PNCCL(AllReduce);
TUTTI_PNCCL(Reduce);
TUTTI_PNCCL(Broadcast);
TUTTI_PNCCL(Bcast);
TUTTI_PNCCL(AllGather);
TUTTI_PNCCL(ReduceScatter);
TUTTI_PNCCL(AlltoAll);
TUTTI_PNCCL(Gather);
TUTTI_PNCCL(Scatter);
TUTTI_PNCCL(Send);
TUTTI_PNCCL(Recv);
