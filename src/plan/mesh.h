#pragma once

// Plans how an operation runs on GPUs that all reach one another's memory (kernels/mesh.h): which
// algorithm, by which protocol, by how many blocks, in which chunks. A pure function,
// so that all ranks come to the same.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "plan/algorithm_table.h"
#include "plan/cost_table.h"
#include "plan/mesh_limits.h"
#include "plan/reduction_order.h"
#include "plan/work.h"

namespace tutti {

std::string_view Name(MeshAlgorithm algorithm);

// Holds what the choice depends on, which is the same on all ranks of a communicator.
struct MeshContext {
  int num_ranks = 1;
  // Reductions keep the order of the ranks: plan/reduction_order.h.
  bool deterministic = false;
  // The data that a round by Simple takes, for each pair and block; that a step of a ring takes,
  // for each block; and that a round by LL and by LL128 takes, for each pair and block. LL128 may
  // not be used where it has none.
  size_t slot_bytes = 0;
  size_t ring_slot_bytes = 0;
  size_t ll_slot_bytes = 0;
  size_t ll128_slot_bytes = 0;
  // The most blocks of a kernel, and of one whose blocks have a multiprocessor each
  // (LoneBlocksFor).
  uint32_t max_blocks = 1;
  uint32_t min_blocks = 1;  // As far as max_blocks and the data allow.
  uint32_t max_lone_blocks = ~0u;
  // Up to this many bytes a message goes by LL.
  size_t short_message_bytes = kLLMessage;
  GpuCosts costs;
  // The links of a GPU carry so much, in bytes a microsecond, where it is known and less than the
  // costs say; 0: not known.
  double link_bytes_per_us = 0;
  // For each Collective, a bit for each Algorithm that NCCL_ALGO leaves, and for each Protocol that
  // NCCL_PROTO does, or 0 for all. Where nothing of it serves, it has no effect.
  std::array<uint32_t, kNumCollectives> allowed_algorithms = {};
  std::array<uint32_t, kNumCollectives> allowed_protocols = {};
};

// Returns a context for GPUs of which the smallest has so many multiprocessors, with slots of a
// usual size.
MeshContext MeshContextFor(int num_ranks, int multiprocessors, GpuReach reach);

struct MeshChoice {
  MeshAlgorithm algorithm = MeshAlgorithm::kAllReduceOneShot;
  Protocol protocol = Protocol::kSimple;
  uint32_t blocks = 1;
  uint32_t threads = 128;
  bool early = false;      // see GpuCosts::early_blocks
  double us = 0;           // It takes so long, beyond what all operations do.
  size_t block_elems = 0;  // Each block but the last has so many of `count`.
  size_t chunk_elems = 0;  // A slot takes so many in one round.
};

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

// Whether all ranks reach those buffers of all that an operation reads at others (AllReduce,
// ReduceScatter) or writes there (AllReduce, AllGather).
enum class Buffers : uint8_t { kOwn, kShared };

// Returns the most blocks of an operation that may come early. Those that wait and those that they
// wait for together take no more room than one operation may; none where that is not so
// (NCCL_MAX_CTAS, small GPUs).
uint32_t MostEarlyBlocks(const MeshContext& context);

// REQUIRES: num_ranks > 1, count > 0; `collective` is one of AllReduce, Reduce, Broadcast,
// AllGather, ReduceScatter, AlltoAll, Gather, Scatter. `count` as in NCCL's calls. An algorithm
// that does not keep `order` is not chosen, whatever the lists allow.
MeshChoice ChooseMesh(const MeshContext& context, Collective collective, size_t count,
                      size_t elem_bytes, Buffers buffers = Buffers::kOwn,
                      ReductionOrder order = ReductionOrder::kAny);

// Returns what an operation takes, in microseconds, in a CUDA graph. `count` as in NCCL's calls;
// of AllGatherV, AlltoAllV, ReduceScatterV and SendRecv the elements that this rank sends.
double PredictMeshUs(const MeshContext& context, Collective collective, size_t count,
                     size_t elem_bytes, Buffers buffers = Buffers::kOwn,
                     ReductionOrder order = ReductionOrder::kAny);

// Reads "name=value,…" (TUTTI_GPU_TUNE) into the context: the names of plan/gpu_costs.def, and
// "blocks" for fewer blocks. InvalidUsage for others.
Status ApplyMeshTuning(std::string_view text, MeshContext& context);
// NCCL_ALGO: oneshot, twoshot, ring, exchange, symmetric; NCCL_PROTO: LL, LL128, Simple;
// as ApplyAlgorithmList and ApplyProtocolList read them for hosts.
Status ApplyMeshAlgorithms(std::string_view algo, MeshContext& context);
Status ApplyMeshProtocols(std::string_view proto, MeshContext& context);

// Returns a text such as "one-shot AllReduce by LL, 4 blocks of 128 threads".
std::string Describe(const MeshChoice& choice);

}  // namespace tutti
