#pragma once

// The content of a device communicator, and its layout in the resource window. Pure functions of
// values: all ranks with equal requirements get equal results.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "devcomm/gin_plan.h"
#include "nccl_device/comm.h"
#include "nccl_device/later_releases.h"

namespace tutti {

// Returns requirements of any release from 2.28.7 on in the form of 2.30.7. The releases 2.28 had
// neither size nor magic: ReadRequirements tells their form by the bytes in these places. A program
// written for 2.28 and compiled with today's header has set both to zero. InvalidUsage for an
// unknown magic or version.
Result<ncclDevCommRequirements_t> ReadRequirements(const ncclDevCommRequirements_t* given);

// A buffer of the resource window, and the place to store its handle.
struct ResourcePiece {
  ncclDevResourceHandle handle = 0;
  ncclDevResourceHandle* out = nullptr;  // may be null
};

struct ResourcePlan {
  uint64_t bytes = 0;  // the length of the resource window, at least one unit
  GinPlan gin;
  ncclLsaBarrierHandle lsa_barrier = {};
  ncclLsaBarrierHandle hybrid_lsa_barrier = {};
  std::vector<ResourcePiece> pieces;               // They stand in the order of the caller's list.
  std::vector<ncclMultimemHandle_t*> no_multimem;  // handles to be set to null
  uint64_t digest = 0;                             // equal where requirements are equal
};

// Packs all that the requirements ask for. InvalidArgument for impossible counts and sizes, for
// signals, counters and barriers over the network without a GIN connection, for a connection that
// kernels of these ranks cannot have, and for multicast memory, which is not supported yet.
Result<ResourcePlan> PlanResources(const ncclDevCommRequirements_t& requirements,
                                   const TeamShape& shape);

// Fill elements of the list by which a program asks for its own barriers and exchanges.
// InvalidArgument for counts below 0 or too large.
Status FillLsaBarrierRequirement(ncclTeam_t team, int num_barriers, ncclLsaBarrierHandle_t* handle,
                                 ncclDevResourceRequirements_t* element);
Status FillGinBarrierRequirement(ncclTeam_t team, int num_barriers, ncclGinBarrierHandle_t* handle,
                                 ncclDevResourceRequirements_t* element);
Status FillLLA2ARequirement(int num_blocks, int num_slots, ncclLLA2AHandle_t* handle,
                            ncclDevResourceRequirements_t* element);

}  // namespace tutti
