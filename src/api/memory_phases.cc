// Memory phases: a communicator's memory given back and taken again.

#include "api/context.h"
#include "comm/group.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// A rank with wrong arguments meets the others all the same, so that they hear of the mistake.
Status Suspend(ncclComm_t comm, int flags) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  Status wrong;
  if (flags != NCCL_SUSPEND_MEM)
    wrong = InvalidArgument("flags is {:#x}, but must be NCCL_SUSPEND_MEM", flags);
  return ThreadGroup().AddJoint(*comm, [comm, wrong] { return comm->comm->Suspend(wrong); });
}

Status Resume(ncclComm_t comm) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckInService(use));
  return ThreadGroup().AddJoint(*comm, [comm] { return comm->comm->Resume(); });
}

Status MemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (value == nullptr) return InvalidArgument("value is null");
  const Operations& operations = comm->comm->operations();
  switch (stat) {
    case ncclStatGpuMemSuspend:
      *value = operations.SuspendableBytes();
      return Status::Ok();
    case ncclStatGpuMemSuspended:
      *value = comm->comm->suspended() ? 1 : 0;
      return Status::Ok();
    case ncclStatGpuMemPersist:
      *value = operations.PersistentBytes();
      return Status::Ok();
    case ncclStatGpuMemTotal:
      *value = operations.PersistentBytes() + operations.SuspendableBytes();
      return Status::Ok();
  }
  return InvalidArgument("{} is no statistic", static_cast<int>(stat));
}

}  // namespace
}  // namespace tutti::api

using tutti::api::Return;

ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags) {
  return Return(__func__, [&] { return tutti::api::Suspend(comm, flags); });
}
ncclResult_t ncclCommResume(ncclComm_t comm) {
  return Return(__func__, [&] { return tutti::api::Resume(comm); });
}

ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  return Return(__func__, [&] { return tutti::api::MemStats(comm, stat, value); });
}

TUTTI_PNCCL(CommSuspend);
TUTTI_PNCCL(CommResume);
TUTTI_PNCCL(CommMemStats);
