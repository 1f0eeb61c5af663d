// Device communicators, for kernels of several ranks.

#include "api/context.h"
#include "comm/group.h"
#include "devcomm/record.h"
#include "devcomm/requirements.h"
#include "nccl_device.h"

namespace tutti::api {
namespace {

Status CreateDevComm(ncclComm_t comm, const ncclDevCommRequirements_t* given, ncclDevComm_t* out) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckUsable(use));
  Result<ncclDevCommRequirements_t> asked = ReadRequirements(given);
  if (out == nullptr) asked = InvalidArgument("the place for the device communicator is null");
  // A rank with wrong arguments makes the call as well, and all ranks learn of the mistake.
  return ThreadGroup().AddJoint(*comm, [comm, asked, out]() -> Status {
    TUTTI_ASSIGN(const ncclDevComm made, comm->comm->device_communicators().Create(asked));
    StoreDevComm(made, asked.value(), out);
    return Status::Ok();
  });
}

Status DestroyDevComm(ncclComm_t comm, const ncclDevComm_t* devcomm) {
  const HandleUse use(comm);
  TUTTI_TRY(CheckReady(use));
  if (devcomm == nullptr) return InvalidArgument("the device communicator is null");
  return use->comm->device_communicators().Destroy(devcomm);
}

}  // namespace
}  // namespace tutti::api

using tutti::api::Return;

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                               ncclDevComm_t* outDevComm) {
  return Return(__func__, [&] { return tutti::api::CreateDevComm(comm, reqs, outDevComm); });
}
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm) {
  return Return(__func__, [&] { return tutti::api::DestroyDevComm(comm, devComm); });
}

ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                             ncclLsaBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq) {
  return Return(__func__, [&] {
    return tutti::FillLsaBarrierRequirement(team, nBarriers, outHandle, outReq);
  });
}
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq) {
  return Return(__func__, [&]() -> tutti::Status {
    const tutti::HandleUse use(comm);
    TUTTI_TRY(tutti::api::CheckReady(use));
    return tutti::FillGinBarrierRequirement(team, nBarriers, outHandle, outReq);
  });
}
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                        ncclDevResourceRequirements_t* outReq) {
  return Return(__func__,
                [&] { return tutti::FillLLA2ARequirement(nBlocks, nSlots, outHandle, outReq); });
}
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize) {
  constexpr int kBytesOfSlot = 8;
  return maxElts * ((maxEltSize + kBytesOfSlot - 1) / kBytesOfSlot);
}

TUTTI_PNCCL(DevCommCreate);
TUTTI_PNCCL(DevCommDestroy);
TUTTI_PNCCL(LsaBarrierCreateRequirement);
TUTTI_PNCCL(GinBarrierCreateRequirement);
TUTTI_PNCCL(LLA2ACreateRequirement);
TUTTI_PNCCL(LLA2ACalcSlots);
