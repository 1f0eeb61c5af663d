#pragma once

// What a device communicator is asked to hold, and where it lies in the resource window. Pure
// functions of values: all ranks that ask for the same get the same.

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "nccl_device/comm.h"
#include "nccl_device/later_releases.h"

namespace tutti {

// Returns requirements of any release from 2.28.7 on as those of 2.30.7. The releases 2.28 had
// neither size nor magic: their form is told by what lies where others have these, and a program of
// theirs that was compiled with today's header has set both to zero. InvalidUsage for a magic or a
// version that is not known.
Result<ncclDevCommRequirements_t> ReadRequirements(const ncclDevCommRequirements_t* given);

// The shape of a communicator, as far as requirements depend on it.
struct TeamShape {
  int num_ranks = 1;
  int lsa_size = 1;
  bool has_gin = false;      // Kernels can put to all ranks (src/gin).
  bool has_old_gin = false;  // So can kernels of releases before 2.30 (src/gin/old_forms.h).
  // The length of queues whose requirements name none; 0: the proxy's.
  uint32_t usual_depth = 0;
};

// A buffer of the resource window, and who is told where it lies.
struct ResourcePiece {
  ncclDevResourceHandle handle = 0;
  ncclDevResourceHandle* out = nullptr;  // may be null
};

// Signals and counters of the caller's list, and who is told the first of them.
struct GinNumbers {
  uint32_t first = 0;
  uint32_t* out = nullptr;  // may be null
};

// The form in which kernels know contexts of GIN and post to them (src/gin/old_forms.h).
enum class GinForm : uint8_t { kBefore2294, kBefore230, kToday };

// Holds what a device communicator has of device-initiated networking (GIN).
struct GinPlan {
  ncclGinConnectionType_t connection = NCCL_GIN_CONNECTION_NONE;
  GinForm form = GinForm::kToday;
  int num_contexts = 0;
  uint32_t num_queues = 0;   // Each context has so many: one for each rank that it joins.
  uint32_t queue_depth = 0;  // descriptors of a queue; a power of two
  // A context has the caller's first, then those of barriers and of the caller's list.
  uint32_t num_signals = 0;
  uint32_t num_counters = 0;
  bool strong = false;      // Signals whose strength is not given are strong.
  bool va_signals = false;  // Kernels add to words of windows.
  // Where the words of signals, counters, shadows and values begin in the resource window, in
  // bytes; those of one context follow those of the one before.
  uint64_t signals_at = 0;
  uint64_t counters_at = 0;
  uint64_t shadows_at = 0;
  uint64_t values_at = 0;  // A word for each descriptor, for what is put by value.
  ncclGinBarrierHandle rail_barrier = {};
  ncclGinBarrierHandle world_barrier = {};
  ncclGinBarrierHandle hybrid_rail_barrier = {};
  ncclGinBarrierHandle hybrid_world_barrier = {};
  std::vector<GinNumbers> numbers;  // They follow from the caller's list.

  bool present() const { return connection != NCCL_GIN_CONNECTION_NONE; }
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
