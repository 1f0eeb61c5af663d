// Groups, and the functions without a communicator.

#include "api/context.h"
#include "comm/group.h"
#include "nccl.h"
#include "tutti/tutti.h"

using tutti::api::Return;

namespace {

tutti::Status SimulateEnd(ncclSimInfo_t* info) {
  ncclSimInfo_t full = NCCL_SIM_INFO_INITIALIZER;
  if (info != nullptr && info->magic != full.magic)
    return tutti::InvalidArgument("simInfo was not made with NCCL_SIM_INFO_INITIALIZER");
  TUTTI_ASSIGN(const double us, tutti::ThreadGroup().Simulate());
  if (info != nullptr) info->estimatedTime = static_cast<float>(us);
  return tutti::Status::Ok();
}

}  // namespace

ncclResult_t ncclGroupStart() {
  tutti::ThreadGroup().Start();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  return Return(__func__, [&] { return tutti::ThreadGroup().End(); });
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  return Return(__func__, [&] { return SimulateEnd(simInfo); });
}

ncclResult_t ncclGetVersion(int* version) {
  if (version == nullptr) return Return(__func__, tutti::InvalidArgument("version is null"));
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t tuttiGetVersion(const char** version) {
  if (version == nullptr) return Return(__func__, tutti::InvalidArgument("version is null"));
  *version = TUTTI_VERSION;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "a CUDA call failed";
    case ncclSystemError:
      return "a system call failed";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "another rank failed or was lost";
    case ncclInProgress:
      return "the operation goes on in the background";
    case ncclTimeout:
      return "an operation made no progress for too long";
    default:
      return "unknown result code";
  }
}

TUTTI_PNCCL(GroupStart);
TUTTI_PNCCL(GroupEnd);
TUTTI_PNCCL(GroupSimulateEnd);
TUTTI_PNCCL(GetVersion);
TUTTI_PNCCL(GetErrorString);
