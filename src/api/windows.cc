// Windows: memory that all ranks register together, and addresses in windows.

#include "api/context.h"
#include "comm/group.h"
#include "nccl.h"
#include "nccl_device.h"

namespace tutti::api {
namespace {

constexpr int kKnownFlags = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING;

// Returns the mistake in the arguments of a registration.
Status CheckRequest(const void* buffer, size_t size, int flags) {
  if (size == 0) return InvalidArgument("the buffer is empty");
  TUTTI_TRY(CheckExtent(buffer, size, "the buffer"));
  if (reinterpret_cast<uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return InvalidArgument("the buffer at {} does not begin at a multiple of {} bytes", buffer,
                           NCCL_WIN_REQUIRED_ALIGNMENT);
  if ((flags & ~kKnownFlags) != 0)
    return InvalidArgument("winFlags is {:#x}, of which {:#x} is unknown", flags,
                           flags & ~kKnownFlags);
  return Status::Ok();
}

// A rank with wrong arguments meets the others all the same, so that they hear of the mistake.
Status RegisterWindow(ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* out, int flags) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  if (out != nullptr) *out = nullptr;
  SymmetricMemory::Request request = {.buffer = static_cast<std::byte*>(buffer),
                                      .bytes = size,
                                      .flags = flags,
                                      .wrong = CheckRequest(buffer, size, flags)};
  if (out == nullptr) request.wrong = InvalidArgument("win is null");
  return ThreadGroup().AddJoint(*comm, [comm, request, out]() -> Status {
    TUTTI_ASSIGN(const std::shared_ptr<const Window> window, comm->comm->RegisterWindow(request));
    if (window != nullptr) *out = window->handle;
    return Status::Ok();
  });
}

Status DeregisterWindow(ncclComm_t comm, ncclWindow_t window) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (window == nullptr) return Status::Ok();
  return comm->comm->DeregisterWindow(window);
}

Status UserPointer(ncclComm_t comm, ncclWindow_t window, void** out) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (out == nullptr) return InvalidArgument("outUserPtr is null");
  *out = nullptr;
  TUTTI_ASSIGN(const std::shared_ptr<const Window> found, comm->comm->symmetric().Find(window));
  *out = found->own.data();
  return Status::Ok();
}

using FoundWindow = std::shared_ptr<const Window>;

// Returns the window for a call that stores an address at `out`. Sets `out` to null first.
Result<FoundWindow> FindWindow(ncclWindow_t window, void** out) {
  if (out == nullptr) return InvalidArgument("outPtr is null");
  *out = nullptr;
  TUTTI_ASSIGN(Process* const process, ThisProcess());
  FoundWindow found = process->windows().Find(window);
  if (found == nullptr)
    return InvalidArgument("{} is no window of this process, or has been deregistered",
                           fmt::ptr(window));
  return found;
}

// Returns InvalidArgument unless `offset` lies in the part of `rank`.
Status CheckOffset(const Window& window, size_t offset, int rank) {
  if (window.Holds(rank, offset, 1)) return Status::Ok();
  return InvalidArgument("offset {} is beyond the {} bytes that the window has on rank {}", offset,
                         window.bytes[static_cast<size_t>(rank)], rank);
}

Status AddressAt(const Window& window, size_t offset, int place, void** out) {
  TUTTI_TRY(CheckOffset(window, offset, window.team.first + place));
  *out = window.At(place, offset);
  return Status::Ok();
}

Status LsaPointer(ncclWindow_t handle, size_t offset, int place, void** out) {
  TUTTI_ASSIGN(const FoundWindow window, FindWindow(handle, out));
  if (place < 0 || place >= window->team.size)
    return InvalidArgument("lsaRank is {}, of a team of {}", place, window->team.size);
  return AddressAt(*window, offset, place, out);
}

Status PeerPointer(ncclWindow_t handle, size_t offset, int peer, void** out) {
  TUTTI_ASSIGN(const FoundWindow window, FindWindow(handle, out));
  const auto num_ranks = static_cast<int>(window->bytes.size());
  if (peer < 0 || peer >= num_ranks)
    return InvalidArgument("peer is {}, of {} ranks", peer, num_ranks);
  if (window->team.Has(peer)) return AddressAt(*window, offset, peer - window->team.first, out);
  return CheckOffset(*window, offset, peer);
}

// A communicator without multicast memory is no error.
Status LsaMultimemPointer(ncclWindow_t handle, size_t offset, void** out) {
  TUTTI_ASSIGN(const FoundWindow window, FindWindow(handle, out));
  return CheckOffset(*window, offset, window->team.first + window->team.place);
}

Status MultimemPointer(ncclWindow_t handle, ncclMultimemHandle_t multimem, void** out) {
  TUTTI_TRY(FindWindow(handle, out).status());
  if (multimem.mcBasePtr == nullptr)
    return InvalidArgument("the handle of multicast memory is null");
  return InvalidUsage("this communicator has no multicast memory");
}

}  // namespace
}  // namespace tutti::api

using tutti::api::Return;

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buff, size_t size, ncclWindow_t* win,
                                    int winFlags) {
  return Return(__func__,
                [&] { return tutti::api::RegisterWindow(comm, buff, size, win, winFlags); });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return Return(__func__, [&] { return tutti::api::DeregisterWindow(comm, win); });
}
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void** outUserPtr) {
  return Return(__func__, [&] { return tutti::api::UserPointer(comm, win, outUserPtr); });
}
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                     void** outPtr) {
  return Return(__func__, [&] { return tutti::api::LsaPointer(window, offset, lsaRank, outPtr); });
}
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** outPtr) {
  return Return(__func__, [&] { return tutti::api::PeerPointer(window, offset, peer, outPtr); });
}
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** outPtr) {
  return Return(__func__, [&] { return tutti::api::LsaMultimemPointer(window, offset, outPtr); });
}
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t,
                                          ncclMultimemHandle_t multimem, void** outPtr) {
  return Return(__func__, [&] { return tutti::api::MultimemPointer(window, multimem, outPtr); });
}

TUTTI_PNCCL(CommWindowRegister);
TUTTI_PNCCL(CommWindowDeregister);
TUTTI_PNCCL(WinGetUserPtr);
TUTTI_PNCCL(GetLsaDevicePointer);
TUTTI_PNCCL(GetPeerDevicePointer);
TUTTI_PNCCL(GetLsaMultimemDevicePointer);
TUTTI_PNCCL(GetMultimemDevicePointer);
