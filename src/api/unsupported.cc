// The functions that nccl.h declares and that this library does not do yet. Each refuses with a
// sentence that names what it would do.

#include "api/context.h"
#include "nccl.h"

using tutti::api::Return;

namespace {

ncclResult_t NotYet(const char* function, ncclComm_t comm, const char* what) {
  return Return(function, [&]() -> tutti::Status {
    const tutti::HandleUse use(comm);
    TUTTI_TRY(tutti::api::CheckReady(use));
    return tutti::InvalidUsage("{} is not implemented yet for {}", what,
                               use->comm->operations().RankKind());
  });
}

}  // namespace

ncclResult_t ncclCommSuspend(ncclComm_t comm, int) {
  return NotYet(__func__, comm, "suspending a communicator");
}
ncclResult_t ncclCommResume(ncclComm_t comm) {
  return NotYet(__func__, comm, "resuming a communicator");
}

TUTTI_PNCCL(CommSuspend);
TUTTI_PNCCL(CommResume);
