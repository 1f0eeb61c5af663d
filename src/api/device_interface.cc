// The host's side of NCCL's device interface, as far as answers need no device communicator, and
// the process-wide functions of nccl.h without an effect yet.

#include <algorithm>
#include <cstring>

#include "api/context.h"
#include "nccl.h"
#include "nccl_device/core.h"
#include "nccl_device/later_releases.h"

using tutti::api::Return;

namespace {

ncclResult_t NotYet(const char* function, const char* what) {
  return Return(function, tutti::InvalidUsage("{} is not implemented yet", what));
}

// Returns the team that `team` makes of the world's size, this rank, and its LSA team. Returns a
// team of no rank for an invalid handle.
template <class MakeTeam>
ncclTeam_t TeamOf(const char* function, ncclComm_t comm, const MakeTeam& make) {
  ncclTeam_t team = {};
  // The error is kept for ncclGetLastError. A team of no rank tells of the error.
  (void)Return(function, [&]() -> tutti::Status {
    const tutti::HandleUse use(comm);
    TUTTI_TRY(tutti::api::CheckReady(use));
    team = make(comm->comm->num_ranks(), comm->comm->rank(), comm->comm->symmetric().team());
    return tutti::Status::Ok();
  });
  return team;
}

ncclTeam_t World(int num_ranks, int rank, const tutti::LsaTeam&) { return {num_ranks, rank, 1}; }
ncclTeam_t Lsa(int, int, const tutti::LsaTeam& team) { return {team.size, team.place, 1}; }
ncclTeam_t Rail(int num_ranks, int rank, const tutti::LsaTeam& team) {
  return {num_ranks / team.size, rank / team.size, team.size};
}

tutti::Status QueryProperties(ncclComm_t comm, ncclCommProperties_t* properties) {
  const tutti::HandleUse use(comm);
  TUTTI_TRY(tutti::api::CheckReady(use));
  constexpr size_t kHeaderBytes = offsetof(ncclCommProperties_t, rank);
  if (properties == nullptr) return tutti::InvalidArgument("the place for the properties is null");
  if (properties->magic != NCCL_API_MAGIC || properties->size < kHeaderBytes)
    return tutti::InvalidUsage(
        "the properties do not begin as NCCL_COMM_PROPERTIES_INITIALIZER has it");
  if (properties->version > NCCL_VERSION_CODE && properties->size > sizeof(*properties))
    return tutti::InvalidUsage(
        "the program was compiled for NCCL {}, whose properties are not known here; this "
        "library has the interface of {}",
        properties->version, NCCL_VERSION_CODE);
  ncclCommProperties_t answer;
  std::memset(&answer, 0, sizeof(answer));
  answer.rank = comm->comm->rank();
  answer.nRanks = comm->comm->num_ranks();
  answer.cudaDev = comm->comm->device().cuda_ordinal();
  answer.nvmlDev = -1;
  answer.hostRmaSupport = comm->comm->CanDoOneSided();
  answer.deviceApiSupport = comm->comm->symmetric().has_flat_space();
  if (comm->comm->device_communicators().WantsDirect())
    answer.ginType = answer.railedGinType = NCCL_GIN_TYPE_GDAKI;
  else if (comm->comm->CanDoGin())
    answer.ginType = answer.railedGinType = NCCL_GIN_TYPE_PROXY;
  answer.nLsaTeams = answer.nRanks / comm->comm->symmetric().team().size;
  const size_t bytes = std::min(properties->size, sizeof(answer));
  std::memcpy(reinterpret_cast<char*>(properties) + kHeaderBytes,
              reinterpret_cast<const char*>(&answer) + kHeaderBytes, bytes - kHeaderBytes);
  return tutti::Status::Ok();
}

// A shorter key is too easily guessed. NCCL asks for as many bytes.
constexpr size_t kLeastKeyBytes = 32;

tutti::Status SetEncryption(const ncclEncryptionConfig_t* config) {
  constexpr ncclEncryptionConfig_t kNothing = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  if (config == nullptr) config = &kNothing;
  if (config->magic != NCCL_API_MAGIC || config->size < sizeof(ncclEncryptionConfig_t)) {
    return tutti::InvalidArgument(
        "the config does not begin as NCCL_ENCRYPTION_CONFIG_INITIALIZER has it");
  }
  if (config->mode == NCCL_ENCRYPTION_MODE_NONE) {
    tutti::api::SetEncryptionKey("");
    return tutti::Status::Ok();
  }
  if (config->mode != NCCL_ENCRYPTION_MODE_PSK) {
    return tutti::InvalidArgument(
        "the config's mode is {}: there are NCCL_ENCRYPTION_MODE_NONE and NCCL_ENCRYPTION_MODE_PSK",
        config->mode);
  }
  const char* const key = config->psk;
  if (key == nullptr || std::strlen(key) < kLeastKeyBytes) {
    return tutti::InvalidArgument("the config's psk must be a text of at least {} bytes",
                                  kLeastKeyBytes);
  }
  tutti::api::SetEncryptionKey(key);
  return tutti::Status::Ok();
}

}  // namespace

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props) {
  return Return(__func__, [&] { return QueryProperties(comm, props); });
}
ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config) {
  return Return(__func__, [&] { return SetEncryption(config); });
}
void ncclResetDebugInit() {}
void ncclResetDebugInitInternal() {}

ncclTeam_t ncclTeamWorld(ncclComm_t comm) { return TeamOf(__func__, comm, World); }
ncclTeam_t ncclTeamLsa(ncclComm_t comm) { return TeamOf(__func__, comm, Lsa); }
ncclTeam_t ncclTeamRail(ncclComm_t comm) { return TeamOf(__func__, comm, Rail); }
ncclTeam_t ncclTeamCft(ncclComm_t, ncclCftTeamMode_t) { return {}; }
ncclTeam_t ncclTeamCftMultimem(ncclComm_t) { return {}; }
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return TeamOf(__func__, comm, World).rank + (rank - team.rank) * team.stride;
}
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  return TeamOf(__func__, comm, Lsa).rank + (rank - team.rank) * team.stride;
}

ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t, size_t, ncclCftLeId* leId,
                                         size_t* leOffset) {
  if (leId != nullptr) *leId = 0;
  if (leOffset != nullptr) *leOffset = 0;
  return NotYet(__func__, "a counted write");
}
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId* leId,
                                    size_t* leOffset) {
  if (leId != nullptr) *leId = 0;
  if (leOffset != nullptr) *leOffset = 0;
  return NotYet(__func__, "a counted write");
}
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t, size_t, int, ncclCftLeId* leId,
                                     size_t* leOffset) {
  if (leId != nullptr) *leId = 0;
  if (leOffset != nullptr) *leOffset = 0;
  return NotYet(__func__, "a counted write");
}
ncclResult_t ncclGinOutboxCreateRequirement(int, int, ncclGinOutboxHandle_t*,
                                            ncclDevResourceRequirements_t*) {
  return NotYet(__func__, "a requirement of a device communicator");
}
ncclResult_t ncclGinInboxA2ACreateRequirement(ncclTeam_t, int, int, ncclGinInboxA2AHandle_t*,
                                              ncclDevResourceRequirements_t*) {
  return NotYet(__func__, "a requirement of a device communicator");
}

TUTTI_PNCCL(GetMultimemDeviceLeInfo);
TUTTI_PNCCL(GetCftDeviceLeInfo);
TUTTI_PNCCL(GetPeerDeviceLeInfo);
TUTTI_PNCCL(GinOutboxCreateRequirement);
TUTTI_PNCCL(GinInboxA2ACreateRequirement);
TUTTI_PNCCL(CommQueryProperties);
TUTTI_PNCCL(TeamWorld);
TUTTI_PNCCL(TeamLsa);
TUTTI_PNCCL(TeamRail);
TUTTI_PNCCL(TeamCft);
TUTTI_PNCCL(TeamCftMultimem);
TUTTI_PNCCL(TeamRankToWorld);
TUTTI_PNCCL(TeamRankToLsa);
TUTTI_PNCCL(SetEncryption);
TUTTI_PNCCL(ResetDebugInit);
TUTTI_PNCCL(ResetDebugInitInternal);
