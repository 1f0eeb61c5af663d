// Windows: buffers that all ranks register together.

#include <algorithm>

#include "api/context.h"
#include "comm/group.h"
#include "nccl.h"

namespace tutti::api {
namespace {

static_assert(Communicator::kSymmetricWindow == NCCL_WIN_COLL_SYMMETRIC);
constexpr int kKnownFlags = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING;

ncclWindow_t HandleOf(const std::unique_ptr<TuttiWindow>& window) {
  return reinterpret_cast<ncclWindow_t>(window.get());
}

Status RegisterWindow(ncclComm_t comm, void* buffer, size_t size, ncclWindow_t* out, int flags) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  if (out == nullptr) return InvalidArgument("win is null");
  *out = nullptr;
  if (buffer == nullptr || size == 0) return InvalidArgument("the buffer is empty");
  TUTTI_TRY(CheckExtent(buffer, size, "the buffer"));
  if (reinterpret_cast<uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return InvalidArgument("the buffer at {} does not begin at a multiple of {} bytes", buffer,
                           NCCL_WIN_REQUIRED_ALIGNMENT);
  if ((flags & ~kKnownFlags) != 0)
    return InvalidArgument("winFlags is {:#x}, of which {:#x} is unknown", flags,
                           flags & ~kKnownFlags);
  return ThreadGroup().AddJoint(*comm, [comm, buffer, size, out, flags]() -> Status {
    const std::span memory(static_cast<std::byte*>(buffer), size);
    auto window = std::make_unique<TuttiWindow>();
    window->memory = memory;
    TUTTI_ASSIGN(const Operations::Registration registration,
                 comm->comm->RegisterBuffer(memory, flags));
    window->registration = registration.token;
    const MutexLock lock(comm->mutex);
    comm->windows.push_back(std::move(window));
    *out = HandleOf(comm->windows.back());
    return Status::Ok();
  });
}

// Returns the window's place among those of the communicator.
using Windows = std::vector<std::unique_ptr<TuttiWindow>>;
Result<Windows::iterator> FindWindow(ncclComm_t comm, ncclWindow_t window)
    TUTTI_REQUIRES(comm->mutex) {
  const auto found = std::find_if(comm->windows.begin(), comm->windows.end(),
                                  [&](const auto& w) { return HandleOf(w) == window; });
  if (found == comm->windows.end())
    return InvalidArgument("the window is none of this communicator, or has been deregistered");
  return found;
}

Status DeregisterWindow(ncclComm_t comm, ncclWindow_t window) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (window == nullptr) return Status::Ok();
  std::unique_ptr<TuttiWindow> gone;
  {
    const MutexLock lock(comm->mutex);
    TUTTI_ASSIGN(const auto found, FindWindow(comm, window));
    gone = std::move(*found);
    comm->windows.erase(found);
  }
  return comm->comm->operations().Forget(gone->registration);
}

Status UserPointer(ncclComm_t comm, ncclWindow_t window, void** out) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (out == nullptr) return InvalidArgument("outUserPtr is null");
  const MutexLock lock(comm->mutex);
  TUTTI_ASSIGN(const auto found, FindWindow(comm, window));
  *out = (*found)->memory.data();
  return Status::Ok();
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

TUTTI_PNCCL(CommWindowRegister);
TUTTI_PNCCL(CommWindowDeregister);
TUTTI_PNCCL(WinGetUserPtr);
