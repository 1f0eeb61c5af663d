// One-sided calls: arguments are checked here, and window/one_sided.h makes the calls.

#include "window/one_sided.h"

#include <vector>

#include "api/context.h"
#include "comm/group.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// NCCL 2.30 also has a single signal and a single context.
Status CheckPlace(int peer, int signal, int context, int num_ranks) {
  if (peer < 0 || peer >= num_ranks)
    return InvalidArgument("the peer is {}, but the communicator has ranks 0 to {}", peer,
                           num_ranks - 1);
  if (signal != 0) return InvalidArgument("sigIdx is {}; there is signal 0 only", signal);
  if (context != 0) return InvalidArgument("ctx is {}; there is context 0 only", context);
  return Status::Ok();
}

Status Issue(ncclComm_t comm, std::shared_ptr<const OneSidedCall> call, cudaStream_t stream) {
  TUTTI_ASSIGN(void* const resolved, StreamFor(comm->comm->operations(), stream));
  return ThreadGroup().Add(*comm, {OneSidedTask{std::move(call)}, resolved});
}

// The place of a call's signal, without a put.
struct Target {
  int peer;
  int signal;
  int context;
  unsigned int flags;
};

Status PutSignal(const Target& target, OneSided::Put put, ncclComm_t comm, cudaStream_t stream) {
  TUTTI_TRY(CheckPlace(target.peer, target.signal, target.context, comm->comm->num_ranks()));
  if (target.flags != 0) return InvalidArgument("flags is {:#x}; there are none", target.flags);
  TUTTI_ASSIGN(OneSided* const one_sided, comm->comm->one_sided());
  put.peer = target.peer;
  TUTTI_ASSIGN(std::shared_ptr<const OneSidedCall> call, one_sided->MakePut(std::move(put)));
  return Issue(comm, std::move(call), stream);
}

Status PutData(const Target& target, const void* from, size_t count, ncclDataType_t type,
               ncclWindow_t handle, size_t offset, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  TUTTI_TRY(CheckType(type));
  const size_t elem = SizeOf(static_cast<DataType>(type));
  if (count >= kAddressSpace / elem)
    return InvalidArgument("a count of {} elements is more than an address space holds", count);
  const size_t bytes = count * elem;
  TUTTI_TRY(CheckPlace(target.peer, target.signal, target.context, comm->comm->num_ranks()));
  OneSided::Put put;
  TUTTI_ASSIGN(put.window, comm->comm->symmetric().Find(handle));
  if (!put.window->Holds(target.peer, offset, bytes))
    return InvalidArgument(
        "{} bytes at offset {} are not within the {} bytes that the window has "
        "on rank {}",
        bytes, offset, put.window->bytes[static_cast<size_t>(target.peer)], target.peer);
  if (bytes > 0) {
    if (from == nullptr) return InvalidArgument("localbuff is null");
    TUTTI_TRY(CheckExtent(from, bytes, "localbuff"));
    if (use->settings.check_pointers)
      TUTTI_TRY(comm->comm->operations().CheckBuffer(from, bytes, "local buffer"));
  }
  put.offset = offset;
  put.data = {static_cast<const std::byte*>(from), bytes};
  return PutSignal(target, std::move(put), comm, stream);
}

Status SignalAlone(const Target& target, ncclComm_t comm, cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  return PutSignal(target, {}, comm, stream);
}

Status WaitSignal(int count, const ncclWaitSignalDesc_t* descs, ncclComm_t comm,
                  cudaStream_t stream) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  if (count < 0) return InvalidArgument("nDesc is {}", count);
  if (count > 0 && descs == nullptr) return InvalidArgument("signalDescs is null");
  std::vector<OneSided::Awaited> awaited;
  for (int i = 0; i < count; ++i) {
    const ncclWaitSignalDesc_t& desc = descs[i];
    TUTTI_TRY(CheckPlace(desc.peer, desc.sigIdx, desc.ctx, comm->comm->num_ranks()));
    if (desc.opCnt < 0) return InvalidArgument("opCnt is {}", desc.opCnt);
    awaited.push_back({desc.peer, static_cast<uint64_t>(desc.opCnt)});
  }
  TUTTI_ASSIGN(OneSided* const one_sided, comm->comm->one_sided());
  return Issue(comm, one_sided->MakeWait(std::move(awaited)), stream);
}

}  // namespace
}  // namespace tutti::api

using tutti::api::Return;

ncclResult_t ncclPutSignal(const void* localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
  return Return(__func__, [&] {
    return tutti::api::PutData({peer, sigIdx, ctx, flags}, localbuff, count, datatype, peerWin,
                               peerWinOffset, comm, stream);
  });
}
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream) {
  return Return(__func__, [&] {
    return tutti::api::SignalAlone({peer, sigIdx, ctx, flags}, comm, stream);
  });
}
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t* signalDescs, ncclComm_t comm,
                            cudaStream_t stream) {
  return Return(__func__, [&] { return tutti::api::WaitSignal(nDesc, signalDescs, comm, stream); });
}

TUTTI_PNCCL(PutSignal);
TUTTI_PNCCL(Signal);
TUTTI_PNCCL(WaitSignal);
