#pragma once

// Functions for plans of GPUs with access to one another's memory (RankKind::kMesh): the most
// blocks of kernels, a context for usual GPUs, and the numbers that TUTTI_GPU_TUNE changes. All
// functions are pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "plan/plan.h"

namespace tutti {

std::string_view Name(MeshAlgorithm algorithm);

// Returns a context for GPUs with slots of a usual size. `multiprocessors` is the number of
// multiprocessors of the smallest GPU.
PlanContext MeshContextFor(int num_ranks, int multiprocessors, GpuReach reach);

// Returns the most blocks of an operation. `multiprocessors` is the number of multiprocessors of
// the smallest GPU.
//
// Kernels of several communicators that run at the same time may start in a different order on
// every GPU, and each kernel waits for the blocks with the same number on other GPUs. All kernels
// finish if the GPUs have room for all of their blocks. Otherwise the first kernel may fill one GPU
// and the second kernel the next GPU, and both wait for ever. A communicator therefore takes the
// kCommunicatorsAtOnce-th part of the room.
//
// The room is two blocks on each multiprocessor. Registers are the bound (65536 on each
// multiprocessor of sm_80, sm_90 and sm_100): kernels by Simple and kernels of rings are compiled
// for at most 128 registers, and the 256 threads of a block take half of the registers. Two blocks
// of 256 threads fit for messages too. Blocks of more threads (the longest messages, LL128,
// registered buffers) and blocks of more registers (LL) are alone on a multiprocessor. For blocks
// of these kinds two communicators finish because each communicator leaves some multiprocessors
// free (four on an H200), on which the blocks of the second communicator run a few at a time.
// Threads (2048 of a multiprocessor) and shared memory (none is used) are no bound. If a GPU runs
// out of room all the same, blocks begin in order, and an operation without competitors still
// finishes.
//
// On an H200, large operations reach their full speed with half of the room. A quarter of the room
// (NCCL_MAX_CTAS=64 there) gives each block slots twice as long, and therefore as much data under
// way round a ring.
inline constexpr uint32_t kCommunicatorsAtOnce = 2;
inline constexpr uint32_t kBlocksOnMultiprocessor = 2;
uint32_t BlocksFor(int multiprocessors);
// Returns the most blocks of kernels with blocks that need a multiprocessor each, whatever the user
// asks for.
uint32_t LoneBlocksFor(int multiprocessors);

// Returns the most blocks of an operation that may come early when kernels have at most
// `max_blocks`. A waiting kernel and the kernel before it together take no more room than a single
// operation may. Where the room does not suffice (NCCL_MAX_CTAS, small GPUs) no kernel comes early,
// and 0 is returned.
uint32_t MostEarlyBlocks(const MeshReach& mesh, uint32_t max_blocks);

// Reads TUTTI_GPU_TUNE ("name=value,…") into the context. The names are those of
// plan/gpu_costs.def, and "blocks" for fewer blocks. Returns InvalidUsage for other names.
Status ApplyMeshTuning(std::string_view text, MeshReach& mesh);

// Returns a text such as "one-shot AllReduce by LL, 4 blocks of 128 threads". REQUIRES: the plan is
// for GPUs that reach one another's memory.
std::string DescribeMesh(const Plan& plan);

}  // namespace tutti
