// The collectives and point-to-point calls. Arguments are checked here; everything else happens in
// comm.

#include "api/collectives.h"

#include <algorithm>
#include <memory>
#include <numeric>
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

// Refuses buffers that are not memory of this process, for NCCL_CHECK_POINTERS. Of a buffer with
// `count` elements for each rank only the first `count` are looked at.
Status CheckMapped(const Call& call, const CollectiveTask& task) {
  const size_t bytes = task.count * SizeOf(task.type);
  const Operations& operations = call.comm->comm->operations();
  if (call.NeedsSend(task)) TUTTI_TRY(operations.CheckBuffer(task.send, bytes, "send buffer"));
  if (call.NeedsRecv(task)) TUTTI_TRY(operations.CheckBuffer(task.recv, bytes, "receive buffer"));
  return Status::Ok();
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
  if (task.count > 0) {
    const size_t bytes = task.count * SizeOf(task.type);
    if (call.NeedsSend(task) && !IsBuffer(task.send, bytes)) [[unlikely]]
      return CheckTyped(task.send, task.count, task.type, "the send buffer");
    if (call.NeedsRecv(task) && !IsBuffer(task.recv, bytes)) [[unlikely]]
      return CheckTyped(task.recv, task.count, task.type, "the receive buffer");
  }
  if (use->settings.check_pointers) TUTTI_TRY(CheckMapped(call, task));
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
  const Operations& operations = use->comm->operations();
  if (message.count > 0 && !IsBuffer(message.buffer, message.bytes())) [[unlikely]]
    return CheckTyped(message.buffer, message.count, message.type,
                      message.is_send ? "the send buffer" : "the receive buffer");
  if (use->settings.check_pointers)
    TUTTI_TRY(operations.CheckBuffer(message.buffer, message.bytes(),
                                     message.is_send ? "send buffer" : "receive buffer"));
  TUTTI_ASSIGN(void* const resolved, StreamFor(operations, stream));
  return ThreadGroup().Add(*comm, {message, resolved});
}

// Copies the counts of all ranks, and their displacements. Without displacements the parts lie one
// behind the last.
Status ReadParts(int num_ranks, const size_t* counts, const size_t* offsets, const char* what,
                 std::vector<size_t>& counts_out, std::vector<size_t>& offsets_out) {
  if (counts == nullptr) return InvalidArgument("{} is null", what);
  counts_out.assign(counts, counts + num_ranks);
  if (offsets != nullptr) {
    offsets_out.assign(offsets, offsets + num_ranks);
  } else {
    offsets_out.resize(static_cast<size_t>(num_ranks));
    std::exclusive_scan(counts_out.begin(), counts_out.end(), offsets_out.begin(), size_t{0});
  }
  return Status::Ok();
}

Status CheckParts(const std::vector<size_t>& counts, const std::vector<size_t>& offsets,
                  DataType type) {
  for (size_t i = 0; i < counts.size(); ++i) {
    TUTTI_TRY(CheckCount(counts[i], type, 1));
    TUTTI_TRY(CheckCount(offsets[i], type, 1));
    TUTTI_TRY(CheckCount(offsets[i] + counts[i], type, 1));
  }
  return Status::Ok();
}

// Checks a buffer of the parts of all ranks, of which any may be empty.
Status CheckPartsOf(const void* buffer, const std::vector<size_t>& counts,
                    const std::vector<size_t>& offsets, ncclDataType_t type, const char* what) {
  size_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) end = std::max(end, offsets[i] + counts[i]);
  return end == 0 ? Status::Ok() : CheckTyped(buffer, end, static_cast<DataType>(type), what);
}

Status AllGatherV(const void* send, size_t send_count, void* recv, const size_t* counts,
                  const size_t* offsets, ncclDataType_t type, ncclComm_t comm,
                  cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  auto parts = std::make_shared<VariableParts>();
  TUTTI_TRY(ReadParts(comm->comm->num_ranks(), counts, offsets, "recvcounts", parts->recv_counts,
                      parts->recv_offsets));
  TUTTI_TRY(CheckParts(parts->recv_counts, parts->recv_offsets, static_cast<DataType>(type)));
  const size_t mine = parts->recv_counts[static_cast<size_t>(comm->comm->rank())];
  if (mine != send_count)
    return InvalidArgument("sendcount is {}, but recvcounts says {} for this rank, {}", send_count,
                           mine, comm->comm->rank());
  if (send_count > 0)
    TUTTI_TRY(CheckTyped(send, send_count, static_cast<DataType>(type), "the send buffer"));
  TUTTI_TRY(
      CheckPartsOf(recv, parts->recv_counts, parts->recv_offsets, type, "the receive buffer"));
  CollectiveTask task = {.collective = Collective::kAllGatherV, .send = send, .recv = recv};
  task.count = std::accumulate(parts->recv_counts.begin(), parts->recv_counts.end(), size_t{0});
  task.parts = std::move(parts);
  return Submit({comm, stream, type, UsedBy::kNobody, UsedBy::kAll}, std::move(task));
}

Status ReduceScatterV(const void* send, void* recv, const size_t* counts, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  auto parts = std::make_shared<VariableParts>();
  TUTTI_TRY(ReadParts(comm->comm->num_ranks(), counts, nullptr, "recvcounts", parts->recv_counts,
                      parts->recv_offsets));
  TUTTI_TRY(CheckParts(parts->recv_counts, parts->recv_offsets, static_cast<DataType>(type)));
  const size_t mine = parts->recv_counts[static_cast<size_t>(comm->comm->rank())];
  if (mine > 0)
    TUTTI_TRY(CheckTyped(recv, mine, static_cast<DataType>(type), "the receive buffer"));
  CollectiveTask task = {.collective = Collective::kReduceScatterV, .send = send, .recv = recv};
  task.count = std::accumulate(parts->recv_counts.begin(), parts->recv_counts.end(), size_t{0});
  task.parts = std::move(parts);
  return Submit({comm, stream, type, UsedBy::kAll, UsedBy::kNobody}, std::move(task), &op);
}

Status AllReduceMany(const void* const* sends, void* const* recvs, const size_t* counts, size_t n,
                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  if (n > 0 && (sends == nullptr || recvs == nullptr || counts == nullptr))
    return InvalidArgument("sendbuffs, recvbuffs or counts is null");
  const size_t elem = SizeOf(static_cast<DataType>(type));
  auto buffers = std::make_shared<ScatteredBuffers>();
  buffers->inputs.reserve(n);
  buffers->outputs.reserve(n);
  buffers->starts.reserve(n + 1);
  for (size_t i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;
    TUTTI_TRY(CheckCount(counts[i], static_cast<DataType>(type), 1));
    TUTTI_TRY(CheckCount(counts[i] + buffers->count(), static_cast<DataType>(type), 1));
    const auto checked = static_cast<DataType>(type);
    TUTTI_TRY(CheckTyped(sends[i], counts[i], checked, "a send buffer"));
    TUTTI_TRY(CheckTyped(recvs[i], counts[i], checked, "a receive buffer"));
    const auto* const send = static_cast<const std::byte*>(sends[i]);
    auto* const recv = static_cast<std::byte*>(recvs[i]);
    if (comm->settings.check_pointers) {
      TUTTI_TRY(CheckMapped(
          {comm, stream, type},
          {.send = send, .recv = recv, .count = counts[i], .type = static_cast<DataType>(type)}));
    }
    buffers->Append(send, recv, counts[i], elem);
  }
  CollectiveTask task = {.collective = Collective::kAllReduce, .count = buffers->count()};
  task.scattered = std::move(buffers);
  return Submit({comm, stream, type, UsedBy::kNobody, UsedBy::kNobody}, std::move(task), &op);
}

Status AlltoAllV(const void* send, const size_t* send_counts, const size_t* send_offsets,
                 void* recv, const size_t* recv_counts, const size_t* recv_offsets,
                 ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  auto parts = std::make_shared<VariableParts>();
  const int n = comm->comm->num_ranks();
  TUTTI_TRY(ReadParts(n, send_counts, send_offsets, "sendcounts", parts->send_counts,
                      parts->send_offsets));
  TUTTI_TRY(ReadParts(n, recv_counts, recv_offsets, "recvcounts", parts->recv_counts,
                      parts->recv_offsets));
  TUTTI_TRY(CheckParts(parts->send_counts, parts->send_offsets, static_cast<DataType>(type)));
  TUTTI_TRY(CheckParts(parts->recv_counts, parts->recv_offsets, static_cast<DataType>(type)));
  const auto self = static_cast<size_t>(comm->comm->rank());
  if (parts->send_counts[self] != parts->recv_counts[self])
    return InvalidArgument("this rank sends itself {} elements and receives {}",
                           parts->send_counts[self], parts->recv_counts[self]);
  CollectiveTask task = {
      .collective = Collective::kAlltoAllV, .send = send, .recv = recv, .count = 0};
  TUTTI_TRY(CheckPartsOf(send, parts->send_counts, parts->send_offsets, type, "the send buffer"));
  TUTTI_TRY(
      CheckPartsOf(recv, parts->recv_counts, parts->recv_offsets, type, "the receive buffer"));
  task.parts = std::move(parts);
  return Submit({comm, stream, type}, std::move(task));
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
