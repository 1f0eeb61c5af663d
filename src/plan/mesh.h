#pragma once

// How an operation runs on GPUs that all reach one another's memory (kernels/mesh.h): which
// algorithm, by which protocol, by how many blocks, in which chunks. A pure function,
// so that all ranks come to the same.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "plan/algorithm_table.h"
#include "plan/mesh_limits.h"
#include "plan/reduction_order.h"
#include "plan/work.h"

namespace tutti {

std::string_view Name(MeshAlgorithm algorithm);

// What the choice depends on; the same on all ranks of a communicator. The defaults are for GPUs
// joined by NVLink; bench/results/gpu.md shows what chose them.
struct MeshContext {
  int num_ranks = 1;
  bool deterministic = false;   // reductions keep the order of the ranks, see reduction_order.h
  size_t slot_bytes = 0;        // of a round by Simple, for each pair and block
  size_t ring_slot_bytes = 0;   // of a step of a ring, for each block
  size_t ll_slot_bytes = 0;     // of data, by LL
  size_t ll128_slot_bytes = 0;  // of data, by LL128; 0: it may not be used
  uint32_t max_blocks = 1;
  // Of kernels whose blocks have a multiprocessor each: see LoneBlocksFor.
  uint32_t max_lone_blocks = ~0u;
  // Up to so many blocks an operation may come to the GPU before the last one of its stream has
  // ended, for which it waits there: a microsecond less between two of them. 0: never.
  uint32_t early_blocks = 64;
  // What a GPU writes to the others in a microsecond, by LL128 and by Simple; what a round by
  // Simple costs more than one by LL (a fence, a flag and two barriers), and a second round, by
  // Simple and by LL.
  double ll128_bytes_per_us = 340e3;
  double simple_bytes_per_us = 290e3;
  double simple_us = 0.8;
  double simple_round_us = 1.0;
  double ll_round_us = 4;
  // LL does not fill the wire. LL128, with 15 bytes of data in 16, does, and costs more to
  // begin with; a second round of them costs a trip across the wire and back into registers.
  double ll_bytes_per_us = 150e3;
  double ll128_us = 0.6;
  double ll128_round_us = 1.8;
  // Round a ring: what a GPU writes to its neighbour in a microsecond, and what each step costs;
  // one of a chain costs less, because only the first pieces wait for it, but its pieces are short.
  double ring_bytes_per_us = 360e3;
  double step_us = 3;
  double chain_us = 1.8;
  double chain_step_us = 0.3;
  // Pair by pair: what a GPU writes to all others in a microsecond, and what it costs more than a
  // mesh to wait for all of them. Where only the root meets all others, short messages, which go in
  // lines, cost nothing more.
  double messages_bytes_per_us = 340e3;
  double message_us = 1.2;
  size_t short_message_bytes = 16 << 10;
  // Straight between registered buffers: what a GPU reads and writes in a microsecond, and what it
  // costs that all ranks meet before and after.
  double symmetric_bytes_per_us = 340e3;
  double symmetric_us = 3;
  // Sends and receives of so many bytes go by LL128, where that may be used.
  size_t ll128_message_from = (16 << 10) + 1;
  size_t ll128_message_bytes = 1 << 20;
  size_t bytes_per_block = 8 << 10;        // written, from which on another block pays
  size_t ll128_bytes_per_block = 4 << 10;  // the same for LL128
  size_t min_chunk_bytes = 16 << 10;  // shorter chunks lose more by barriers than overlap gives
  size_t max_ring_chunk_bytes = ~size_t{0};
  // By Collective: a bit for each Algorithm that NCCL_ALGO leaves, and for each Protocol that
  // NCCL_PROTO does; 0: all. Where nothing of it serves, it has no effect.
  std::array<uint32_t, kNumCollectives> allowed_algorithms = {};
  std::array<uint32_t, kNumCollectives> allowed_protocols = {};
};

struct MeshChoice {
  MeshAlgorithm algorithm = MeshAlgorithm::kAllReduceOneShot;
  Protocol protocol = Protocol::kSimple;
  uint32_t blocks = 1;
  uint32_t threads = 128;
  bool early = false;      // see early_blocks
  double us = 0;           // that it takes, beyond what all operations do
  size_t block_elems = 0;  // of each block but the last, out of `count`
  size_t chunk_elems = 0;  // of a slot, in one round
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
// The most of kernels whose blocks have a multiprocessor each, whatever the user asks for.
uint32_t LoneBlocksFor(int multiprocessors);

// Whether all ranks reach those buffers of all that an operation reads at others (AllReduce,
// ReduceScatter) or writes there (AllReduce, AllGather).
enum class Buffers : uint8_t { kOwn, kShared };

// The most blocks of an operation that may come early. Those that wait and those that they wait for
// together take no more room than one operation may; none where that is not so (NCCL_MAX_CTAS,
// small GPUs).
uint32_t MostEarlyBlocks(const MeshContext& context);

// REQUIRES: num_ranks > 1, count > 0; `collective` is one of AllReduce, Reduce, Broadcast,
// AllGather, ReduceScatter, AlltoAll, Gather, Scatter. `count` as in NCCL's calls. An algorithm
// that does not keep `order` is not chosen, whatever the lists allow.
MeshChoice ChooseMesh(const MeshContext& context, Collective collective, size_t count,
                      size_t elem_bytes, Buffers buffers = Buffers::kOwn,
                      ReductionOrder order = ReductionOrder::kAny);

// Reads "name=value,…" (TUTTI_GPU_TUNE) into the context's numbers; the table in mesh.cc has the
// names. InvalidUsage for others.
Status ApplyMeshTuning(std::string_view text, MeshContext& context);
// NCCL_ALGO: oneshot, twoshot, ring, exchange, symmetric; NCCL_PROTO: LL, LL128, Simple;
// as ApplyAlgorithmList and ApplyProtocolList read them for hosts.
Status ApplyMeshAlgorithms(std::string_view algo, MeshContext& context);
Status ApplyMeshProtocols(std::string_view proto, MeshContext& context);

// "one-shot AllReduce by LL, 4 blocks of 128 threads".
std::string Describe(const MeshChoice& choice);

}  // namespace tutti
