// What nccl.h declares and this library does not do yet: each refuses with a sentence that names
// it.

#include "api/context.h"
#include "nccl.h"
#include "nccl_device.h"

using tutti::api::Return;

namespace {

ncclResult_t NotYet(const char* function, const char* what) {
  return Return(function, tutti::InvalidUsage("{} is not implemented on host communicators", what));
}

}  // namespace

ncclResult_t ncclCommSuspend(ncclComm_t, int) {
  return NotYet(__func__, "suspending a communicator");
}
ncclResult_t ncclCommResume(ncclComm_t) { return NotYet(__func__, "resuming a communicator"); }
ncclResult_t ncclPutSignal(const void*, size_t, ncclDataType_t, int, ncclWindow_t, size_t, int, int,
                           unsigned int, ncclComm_t, cudaStream_t) {
  return NotYet(__func__, "one-sided put");
}
ncclResult_t ncclSignal(int, int, int, unsigned int, ncclComm_t, cudaStream_t) {
  return NotYet(__func__, "one-sided signal");
}
ncclResult_t ncclWaitSignal(int, ncclWaitSignalDesc_t*, ncclComm_t, cudaStream_t) {
  return NotYet(__func__, "waiting for one-sided signals");
}
ncclResult_t ncclDevCommCreate(ncclComm_t, const ncclDevCommRequirements_t*, ncclDevComm_t*) {
  return NotYet(__func__, "a device communicator");
}
ncclResult_t ncclDevCommDestroy(ncclComm_t, const ncclDevComm_t*) {
  return NotYet(__func__, "a device communicator");
}

TUTTI_PNCCL(CommSuspend);
TUTTI_PNCCL(CommResume);
TUTTI_PNCCL(PutSignal);
TUTTI_PNCCL(Signal);
TUTTI_PNCCL(WaitSignal);
TUTTI_PNCCL(DevCommCreate);
TUTTI_PNCCL(DevCommDestroy);
