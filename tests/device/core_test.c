/* The types and host functions of the device API in C11. Compiling this file is the test. */

#include <nccl_device/core.h>

int AskForBarriers(ncclComm_t comm, ncclDevComm_t* dev_comm);

int AskForBarriers(ncclComm_t comm, ncclDevComm_t* dev_comm) {
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  ncclDevCommRequirements_t requirements = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  const ncclTeam_t team = {8, 3, 1};
  const ncclTeam_t half = ncclTeamInnerFactor(team, 4);
  ncclDevResourceRequirements_t piece = {0};
  requirements.lsaBarrierCount = ncclTeamRankInDifference(team, half, 0);
  requirements.resourceRequirementsList = &piece;
  piece.bufferSize = ncclGetResourceBufferOffset(2);
  if (ncclCommQueryProperties(comm, &properties) != ncclSuccess) return 0;
  return properties.deviceApiSupport &&
         ncclDevCommCreate(comm, &requirements, dev_comm) == ncclSuccess;
}
