// Communicators that end: finalized, destroyed, aborted, revoked.

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "api/making.h"
#include "nccl.h"
#include "sys/thread.h"

namespace tutti::api {
namespace {

// Waits for all issued operations. The handle stays.
Status Finalize(ncclComm_t comm) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (!comm->comm) return CheckUsable(use);
  if (comm->finalized.exchange(true))
    return InvalidUsage("the communicator has been finalized already");
  if (comm->blocking) return comm->comm->operations().WaitForAll();
  const auto hold = std::make_shared<ncclComm::WorkHold>(*comm, ncclComm::Shown::kInProgress);
  comm->worker().Enqueue([comm, hold] {
    if (const Status status = comm->comm->operations().WaitForAll(); !status.ok())
      comm->Fail(status);
    *hold = {};
  });
  return Status(Code::kInProgress, "the communicator is being finalized");
}

Status Destroy(ncclComm_t comm) {
  if (comm == nullptr) return Status::Ok();
  HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  if (comm->comm) TUTTI_TRY(comm->comm->operations().WaitForAll());
  End(std::move(use));
  return Status::Ok();
}

// Begun work notices the abort within some 20 ms; a loaded machine needs longer.
constexpr auto kAbortPatience = std::chrono::seconds(2);

Status Abort(ncclComm_t comm) {
  if (comm == nullptr) return Status::Ok();
  HandleUse use(comm);
  TUTTI_TRY(CheckHandle(use));
  // Jobs also end by an abort. The others may then still have to take this rank's data.
  if (comm->comm) comm->comm->operations().NoteAbort();
  comm->RaiseAbort();
  if (comm->comm)
    comm->comm->Stop(InvalidUsage("the communicator was aborted on this rank"), false);
  if (!use.CloseAndLeave()) return Status::Ok();  // Another thread frees the handle.
  // Begun work ends now. Work behind a stream's unmoving operation holds the communicator's memory
  // until the stream gets there, but does not hold the caller.
  const auto ended = std::make_shared<std::promise<void>>();
  std::future<void> end = ended->get_future();
  Result<std::thread> ender = StartThread("tutti-abort", [comm, ended] {
    Handles().Remove(comm);
    ended->set_value();
  });
  if (!ender.ok()) {
    Handles().Remove(comm);
    return Status::Ok();
  }
  if (end.wait_for(kAbortPatience) == std::future_status::ready)
    ender->join();
  else
    ender->detach();
  return Status::Ok();
}

Status Revoke(ncclComm_t comm, int flags) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (flags != NCCL_REVOKE_DEFAULT)
    return InvalidArgument("revokeFlags is {}, but must be NCCL_REVOKE_DEFAULT", flags);
  comm->revoked = true;
  comm->comm->Stop(InvalidUsage("the communicator was revoked on this rank"), false);
  return Status::Ok();
}

}  // namespace
}  // namespace tutti::api

using namespace tutti;  // NOLINT(google-build-using-namespace): the C API below is outside of it
using api::Return;

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return Return(__func__, [&] { return api::Finalize(comm); });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return Return(__func__, [&] { return api::Destroy(comm); });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return Return(__func__, [&] { return api::Abort(comm); });
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  return Return(__func__, [&] { return api::Revoke(comm, revokeFlags); });
}

TUTTI_PNCCL(CommFinalize);
TUTTI_PNCCL(CommDestroy);
TUTTI_PNCCL(CommAbort);
TUTTI_PNCCL(CommRevoke);
