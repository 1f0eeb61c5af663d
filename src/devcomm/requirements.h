#pragma once

// What a device communicator is asked to hold, and where it lies in the resource window. Pure
// functions of values: all ranks that ask for the same get the same.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "nccl_device/comm.h"
#include "nccl_device/later_releases.h"

namespace tutti {

// Returns requirements of any release as those of 2.30.7. The releases up to 2.28 had neither size
// nor magic; what a program of theirs, compiled with today's header, has set to zero there is taken
// for theirs. InvalidUsage for a magic or a version that is not known.
Result<ncclDevCommRequirements_t> ReadRequirements(const ncclDevCommRequirements_t* given);

// The shape of a communicator, as far as requirements depend on it.
struct TeamShape {
  int num_ranks = 1;
  int lsa_size = 1;
};

// A buffer of the resource window, and who is told where it lies.
struct ResourcePiece {
  ncclDevResourceHandle handle = 0;
  ncclDevResourceHandle* out = nullptr;  // may be null
};

struct ResourcePlan {
  uint64_t bytes = 0;  // of the resource window; at least one piece's unit
  ncclLsaBarrierHandle lsa_barrier = {};
  ncclLsaBarrierHandle hybrid_lsa_barrier = {};
  std::vector<ResourcePiece> pieces;               // of the caller's list, in its order
  std::vector<ncclMultimemHandle_t*> no_multimem;  // handles to be set to null
  uint64_t digest = 0;                             // equal where requirements are equal
};

// Packs what the requirements ask for. InvalidArgument for counts and sizes that cannot be, for
// what needs a network that kernels can use, and for multicast memory: neither is there yet.
Result<ResourcePlan> PlanResources(const ncclDevCommRequirements_t& requirements,
                                   const TeamShape& shape);

// The elements of the list by which a program asks for barriers and exchanges of its own.
// InvalidArgument for counts below 0 or too large.
Status FillLsaBarrierRequirement(ncclTeam_t team, int num_barriers, ncclLsaBarrierHandle_t* handle,
                                 ncclDevResourceRequirements_t* element);
Status FillLLA2ARequirement(int num_blocks, int num_slots, ncclLLA2AHandle_t* handle,
                            ncclDevResourceRequirements_t* element);

}  // namespace tutti
