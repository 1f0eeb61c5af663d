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

// Represents a call inside its communicator. Check must return Ok before any other use.
struct Call {
  Call(ncclComm_t comm, cudaStream_t on) : use(comm), stream(on) {}

  // Checks the communicator and the type.
  Status Check(ncclDataType_t of) {
    TUTTI_TRY(CheckUsable(use));
    TUTTI_TRY(CheckType(of));
    type = static_cast<DataType>(of);
    return Status::Ok();
  }
  const ncclComm& handle() const { return *use.comm(); }
  int rank() const { return use->comm->rank(); }
  int num_ranks() const { return use->comm->num_ranks(); }

  HandleUse use;
  cudaStream_t stream;
  DataType type{};
};

Status CheckRoot(int root, int num_ranks, const char* what) {
  if (root < 0 || root >= num_ranks)
    return InvalidArgument("the {} is {}, but the communicator has ranks 0 to {}", what, root,
                           num_ranks - 1);
  return Status::Ok();
}

// Returns whether a buffer is right as far as can be known without a call of the system. Any
// address will do for an unused buffer, and an address need not be aligned: NCCL refuses none
// either.
bool IsGood(const ncclComm& comm, const void* buffer, size_t bytes) {
  return bytes == 0 ||
         (buffer != nullptr && FitsAddressSpace(buffer, bytes) && !comm.settings.check_pointers);
}

// Checks a buffer of which `bytes` bytes are used. NCCL_CHECK_POINTERS refuses buffers that are not
// memory of this process.
Status CheckUsed(const ncclComm& comm, const void* buffer, size_t bytes, bool is_send) {
  if (IsGood(comm, buffer, bytes)) [[likely]]
    return Status::Ok();
  const char* const what = is_send ? "the send buffer" : "the receive buffer";
  if (buffer == nullptr) return InvalidArgument("{} is null", what);
  TUTTI_TRY(CheckExtent(buffer, bytes, what));
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

// Checks the common arguments of all collectives and issues the task. `op` is the operator of a
// reduction.
Status Issue(const Call& call, CollectiveTask task, const ncclRedOp_t* op = nullptr) {
  task.type = call.type;
  if (op != nullptr) {
    TUTTI_ASSIGN(task.op, ResolveOp(call.use.comm(), *op, task.type));
  }
  const int num_ranks = call.num_ranks();
  TUTTI_TRY(CheckCount(task.count, task.type, CountsOnePart(task.collective) ? num_ranks : 1));
  if (task.has_root()) TUTTI_TRY(CheckRoot(task.root, num_ranks, "root"));
  const BufferSizes bytes = SizesOf(task, call.rank(), num_ranks);
  // A call with two good buffers makes no Status for them, which short operations would feel.
  if (!IsGood(call.handle(), task.send, bytes.send) ||
      !IsGood(call.handle(), task.recv, bytes.recv)) [[unlikely]] {
    TUTTI_TRY(CheckUsed(call.handle(), task.send, bytes.send, true));
    TUTTI_TRY(CheckUsed(call.handle(), task.recv, bytes.recv, false));
  }
  const Operations& operations = call.use->comm->operations();
  if (task.wishes != CallWishes()) [[unlikely]]
    TUTTI_TRY(operations.CheckWishes(task));
  if (task.extras && task.extras->launch_event != nullptr) [[unlikely]]
    TUTTI_TRY(ResolveLaunchEvent(operations, task));
  TUTTI_ASSIGN(void* const stream, StreamFor(operations, call.stream));
  return ThreadGroup().Add(*call.use.comm(), {std::move(task), stream});
}

// Checks a send or a receive and issues it.
Status Submit(ncclComm_t comm, cudaStream_t stream, ncclDataType_t type, MessageTask message) {
  Call call(comm, stream);
  TUTTI_TRY(call.Check(type));
  message.type = call.type;
  TUTTI_TRY(CheckCount(message.count, message.type, 1));
  TUTTI_TRY(CheckRoot(message.peer, call.num_ranks(), "peer"));
  TUTTI_TRY(CheckUsed(*comm, message.buffer, message.bytes(), message.is_send));
  TUTTI_ASSIGN(void* const resolved, StreamFor(call.use->comm->operations(), stream));
  return ThreadGroup().Add(*comm, {message, resolved});
}

// Copies the counts of all ranks and their displacements, and refuses parts that no memory holds.
// Without displacements the parts lie one behind the last.
Status ReadParts(const Call& call, const size_t* counts, const size_t* offsets, const char* what,
                 RankParts& parts) {
  if (counts == nullptr) return InvalidArgument("{} is null", what);
  size_t total = 0;
  for (int r = 0; r < call.num_ranks(); ++r) {
    const size_t offset = offsets != nullptr ? offsets[r] : total;
    for (const size_t count : {counts[r], offset, offset + counts[r], total += counts[r]})
      TUTTI_TRY(CheckCount(count, call.type, 1));
    parts.counts.push_back(counts[r]);
    parts.offsets.push_back(offset);
  }
  return Status::Ok();
}

Status AllGatherV(const void* send, size_t send_count, void* recv, const size_t* counts,
                  const size_t* offsets, ncclDataType_t type, ncclComm_t comm,
                  cudaStream_t stream) {
  Call call(comm, stream);
  TUTTI_TRY(call.Check(type));
  auto parts = std::make_shared<VariableParts>();
  TUTTI_TRY(ReadParts(call, counts, offsets, "recvcounts", parts->recvs));
  const size_t mine = parts->recvs.Size(call.rank());
  if (mine != send_count)
    return InvalidArgument("sendcount is {}, but recvcounts says {} for this rank, {}", send_count,
                           mine, call.rank());
  CollectiveTask task = {.collective = Collective::kAllGatherV, .send = send, .recv = recv};
  task.parts = std::move(parts);
  return Issue(call, std::move(task));
}

Status ReduceScatterV(const void* send, void* recv, const size_t* counts, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Call call(comm, stream);
  TUTTI_TRY(call.Check(type));
  auto parts = std::make_shared<VariableParts>();
  TUTTI_TRY(ReadParts(call, counts, nullptr, "recvcounts", parts->recvs));
  CollectiveTask task = {.collective = Collective::kReduceScatterV, .send = send, .recv = recv};
  task.parts = std::move(parts);
  return Issue(call, std::move(task), &op);
}

Status AllReduceMany(const void* const* sends, void* const* recvs, const size_t* counts, size_t n,
                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  Call call(comm, stream);
  TUTTI_TRY(call.Check(type));
  if (n > 0 && (sends == nullptr || recvs == nullptr || counts == nullptr))
    return InvalidArgument("sendbuffs, recvbuffs or counts is null");
  auto buffers = std::make_shared<ScatteredBuffers>();
  buffers->inputs.reserve(n);
  buffers->outputs.reserve(n);
  buffers->starts.reserve(n + 1);
  for (size_t i = 0; i < n; ++i) {
    if (counts[i] == 0) continue;
    TUTTI_TRY(CheckCount(counts[i], call.type, 1));
    TUTTI_TRY(CheckCount(counts[i] + buffers->count(), call.type, 1));
    const size_t elem = SizeOf(call.type);
    TUTTI_TRY(CheckUsed(*comm, sends[i], counts[i] * elem, true));
    TUTTI_TRY(CheckUsed(*comm, recvs[i], counts[i] * elem, false));
    buffers->Append(static_cast<const std::byte*>(sends[i]), static_cast<std::byte*>(recvs[i]),
                    counts[i], elem);
  }
  CollectiveTask task = {.collective = Collective::kAllReduce, .count = buffers->count()};
  task.scattered = std::move(buffers);
  return Issue(call, std::move(task), &op);
}

// Checks the parts that a rank sends to each rank and receives from each rank, and issues the task.
Status IssuePairs(const Call& call, CollectiveTask task, std::shared_ptr<VariableParts> parts) {
  const size_t sent = parts->sends.Size(call.rank()), received = parts->recvs.Size(call.rank());
  if (sent != received)
    return InvalidArgument("this rank sends itself {} elements and receives {}", sent, received);
  task.parts = std::move(parts);
  return Issue(call, std::move(task));
}

Status AlltoAllV(const void* send, const size_t* send_counts, const size_t* send_offsets,
                 void* recv, const size_t* recv_counts, const size_t* recv_offsets,
                 ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  Call call(comm, stream);
  TUTTI_TRY(call.Check(type));
  auto parts = std::make_shared<VariableParts>();
  TUTTI_TRY(ReadParts(call, send_counts, send_offsets, "sendcounts", parts->sends));
  TUTTI_TRY(ReadParts(call, recv_counts, recv_offsets, "recvcounts", parts->recvs));
  return IssuePairs(call, {.collective = Collective::kAlltoAllV, .send = send, .recv = recv},
                    std::move(parts));
}

// Issues a GatherV or a ScatterV. The root's larger buffer has a part for each rank, of which only
// the root knows all; `own_count` is the length of the part of the calling rank.
Status MoveParts(CollectiveTask task, size_t own_count, const size_t* counts, const size_t* offsets,
                 ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  Call call(comm, stream);
  TUTTI_TRY(call.Check(type));
  const int n = call.num_ranks();
  TUTTI_TRY(CheckRoot(task.root, n, "root"));
  TUTTI_TRY(CheckCount(own_count, call.type, 1));
  const bool gathers = task.collective == Collective::kGatherV;
  auto parts = std::make_shared<VariableParts>();
  RankParts& own = gathers ? parts->sends : parts->recvs;
  RankParts& all = gathers ? parts->recvs : parts->sends;
  own.counts.resize(static_cast<size_t>(n));
  own.offsets.resize(static_cast<size_t>(n));
  if (call.rank() == task.root)
    TUTTI_TRY(ReadParts(call, counts, offsets, gathers ? "recvcounts" : "sendcounts", all));
  else
    all = own;
  own.counts[static_cast<size_t>(task.root)] = own_count;
  return IssuePairs(call, std::move(task), std::move(parts));
}

std::shared_ptr<const CallExtras> ExtrasOf(const CollectiveCall& call) {
  if (call.profiler_tag == 0 && call.launch_event == nullptr) [[likely]]
    return nullptr;
  return std::make_shared<const CallExtras>(
      CallExtras{.profiler_tag = call.profiler_tag, .launch_event = call.launch_event});
}

// Checks the arguments of a collective and issues it. `root` and `op` are of collectives that have
// them.
Status Submit(const CollectiveCall& call, Collective collective, int root = 0,
              const ncclRedOp_t* op = nullptr) {
  Call entered(call.comm, call.stream);
  TUTTI_TRY(entered.Check(call.type));
  return Issue(entered,
               {.collective = collective,
                .send = call.send,
                .recv = call.recv,
                .count = call.count,
                .root = root,
                .wishes = call.wishes,
                .extras = ExtrasOf(call)},
               op);
}

}  // namespace

Status AllReduce(const CollectiveCall& call, ncclRedOp_t op) {
  return Submit(call, Collective::kAllReduce, 0, &op);
}

Status Reduce(const CollectiveCall& call, ncclRedOp_t op, int root) {
  return Submit(call, Collective::kReduce, root, &op);
}

Status Broadcast(const CollectiveCall& call, int root) {
  return Submit(call, Collective::kBroadcast, root);
}

Status AllGather(const CollectiveCall& call) { return Submit(call, Collective::kAllGather); }

Status ReduceScatter(const CollectiveCall& call, ncclRedOp_t op) {
  return Submit(call, Collective::kReduceScatter, 0, &op);
}

Status AlltoAll(const CollectiveCall& call) { return Submit(call, Collective::kAlltoAll); }

Status Gather(const CollectiveCall& call, int root) {
  return Submit(call, Collective::kGather, root);
}

Status Scatter(const CollectiveCall& call, int root) {
  return Submit(call, Collective::kScatter, root);
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
    return api::MoveParts(task, sendcount, recvcounts, displs, datatype, comm, stream);
  });
}

ncclResult_t tuttiScatterV(const void* sendbuff, const size_t* sendcounts, const size_t* displs,
                           void* recvbuff, size_t recvcount, ncclDataType_t datatype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  const CollectiveTask task = {
      .collective = Collective::kScatterV, .send = sendbuff, .recv = recvbuff, .root = root};
  return Return(__func__, [&] {
    return api::MoveParts(task, recvcount, sendcounts, displs, datatype, comm, stream);
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
  return Return(__func__, [&] {
    return api::Submit({.comm = comm, .stream = stream}, Collective::kBarrier);
  });
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
