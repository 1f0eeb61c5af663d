#pragma once

// What a device communicator is asked to hold, and where it lies in the resource window. Pure
// functions of values: all ranks that ask for the same get the same.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "devcomm/gin_plan.h"
#include "nccl_device/comm.h"
#include "nccl_device/later_releases.h"

namespace tutti {

// Returns requirements of any release from 2.28.7 on as those of 2.30.7. The releases 2.28 had
// neither size nor magic: their form is told by what lies where others have these, and a program of
// theirs that was compiled with today's header has set both to zero. InvalidUsage for a magic or a
// version that is not known.
Result<ncclDevCommRequirements_t> ReadRequirements(const ncclDevCommRequirements_t* given);

// A buffer of the resource window, and who is told where it lies.
struct ResourcePiece {
  ncclDevResourceHandle handle = 0;
  ncclDevResourceHandle* out = nullptr;  // may be null
};

struct ResourcePlan {
  uint64_t bytes = 0;  // The length of the resource window, at least one piece's unit.
  GinPlan gin;
  ncclLsaBarrierHandle lsa_barrier = {};
  ncclLsaBarrierHandle hybrid_lsa_barrier = {};
  std::vector<ResourcePiece> pieces;               // They stand in the order of the caller's list.
  std::vector<ncclMultimemHandle_t*> no_multimem;  // handles to be set to null
  uint64_t digest = 0;                             // equal where requirements are equal
};

// Packs what the requirements ask for. InvalidArgument for counts and sizes that cannot be, for
// signals, counters and barriers over the network without a GIN connection, for a connection that
// kernels of these ranks cannot have, and for multicast memory, which is not there yet.
Result<ResourcePlan> PlanResources(const ncclDevCommRequirements_t& requirements,
                                   const TeamShape& shape);

// The elements of the list by which a program asks for barriers and exchanges of its own.
// InvalidArgument for counts below 0 or too large.
Status FillLsaBarrierRequirement(ncclTeam_t team, int num_barriers, ncclLsaBarrierHandle_t* handle,
                                 ncclDevResourceRequirements_t* element);
Status FillGinBarrierRequirement(ncclTeam_t team, int num_barriers, ncclGinBarrierHandle_t* handle,
                                 ncclDevResourceRequirements_t* element);
Status FillLLA2ARequirement(int num_blocks, int num_slots, ncclLLA2AHandle_t* handle,
                            ncclDevResourceRequirements_t* element);

}  // namespace tutti
