#pragma once

// What plans of GPUs that reach one another's memory (RankKind::kMesh) begin with: how many blocks
// kernels may have, the context of usual GPUs, and the numbers that TUTTI_GPU_TUNE changes. Pure
// functions.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "plan/plan.h"

namespace tutti {

std::string_view Name(MeshAlgorithm algorithm);

// Returns a context for GPUs of which the smallest has so many multiprocessors, with slots of a
// usual size.
PlanContext MeshContextFor(int num_ranks, int multiprocessors, GpuReach reach);

// The most blocks of an operation, on GPUs of which the smallest has so many multiprocessors.
//
// Kernels of communicators that work at once may stand in another order on every GPU, each waiting
// for the others' blocks of its own number. They all come through if there is room for all of them:
// else one may fill a GPU, another one the next, and both wait for ever. So a communicator takes a
// kCommunicatorsAtOnce-th of the room.
//
// The room is two blocks on each multiprocessor. Registers are what bounds it (65536 of a
// multiprocessor on sm_80, sm_90 and sm_100): kernels by Simple and round rings are compiled for at
// most 128, and their 256 threads take half of them. Of messages, two blocks of 256 threads fit as
// well. Alone on a multiprocessor are blocks of more threads (the longest messages, LL128,
// registered buffers) and of more registers (LL): there two communicators come through because
// the multiprocessors that one leaves free (four of an H200's) let the other one's blocks pass, a
// few at a time. Threads (2048 of a multiprocessor) and shared memory (there is none) bound
// nothing. Where a GPU runs out of room nevertheless, blocks begin in order, so that an operation
// which is alone comes through by and by.
//
// Half of the room is what large operations need on an H200 to be at their fastest. A quarter
// (NCCL_MAX_CTAS=64 there) gives each block slots twice as long, and so as much under way round a
// ring.
inline constexpr uint32_t kCommunicatorsAtOnce = 2;
inline constexpr uint32_t kBlocksOnMultiprocessor = 2;
uint32_t BlocksFor(int multiprocessors);
// Returns the most blocks of kernels whose blocks need a multiprocessor each, whatever the user
// asks for.
uint32_t LoneBlocksFor(int multiprocessors);

// Returns the most blocks of an operation that may come early where kernels have at most
// `max_blocks`. Kernels that wait and the kernels that they wait for together take no more room than
// one operation may; where this cannot be (NCCL_MAX_CTAS, small GPUs) none comes early.
uint32_t MostEarlyBlocks(const MeshReach& mesh, uint32_t max_blocks);

// Reads "name=value,…" (TUTTI_GPU_TUNE) into the context: the names of plan/gpu_costs.def, and
// "blocks" for fewer blocks. InvalidUsage for others.
Status ApplyMeshTuning(std::string_view text, MeshReach& mesh);

// Returns a text such as "one-shot AllReduce by LL, 4 blocks of 128 threads". REQUIRES: the plan is
// for GPUs that reach one another's memory.
std::string DescribeMesh(const Plan& plan);

}  // namespace tutti
