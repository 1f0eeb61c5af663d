#pragma once

// Adasum: a sum of gradients that takes account of their common part. For two vectors
//
//   adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b
//
// Orthogonal vectors are thus added and parallel vectors averaged (Maleki et al., "Scaling
// Distributed Training with Adaptive Summation", 2020). More vectors are combined pair by pair, in
// a tree over the ranks.
//
//   n = 6:  0+4 → 0, 1+5 → 1     ranks beyond the largest power of two bring theirs to a partner
//           0+1, 2+3             the core: 0 … 3 hold the result after this
//           01+23
//           0 → 4, 1 → 5         and give it back
//
// The core combines long vectors by halving: at each level the partners of a pair exchange halves
// of their vectors, each combines one half, and the factors come from dot products that all ranks
// of both sides have added up. The halves come back in the opposite order. A rank thus sends 2 S
// bytes instead of log₂ n · S.
//
//   n = 4, level 1:  0 and 1 exchange halves of the vector: 0 holds the lower half of 01, 1 the
//                    upper half; so do 2 and 3 of 23
//          level 2:  0 and 2 exchange quarters, 1 and 3 likewise: each holds a quarter of 0123
//
// Vectors are held in f32 (f64 for f64) throughout, dot products in f64. The arithmetic is the
// library's (tutti/tutti.h), for the host's memory and for GPUs alike: on a GPU the arithmetic is
// queued between the messages, factors stay beside the dot products, and nothing comes to the host.
// All ranks have the same bits, because each element of the result is computed by one rank and
// copied to the others, or computed by all ranks from the same numbers in the same order.
//
// In two levels a rank combines the averages of hosts instead of the vectors of ranks, as Horovod
// does for tensors on GPUs. Every rank of a host has a piece of its host's average:
//
//   host 0: rank 0, rank 1      reduce-scatter of the average inside each host; Adasum of each
//   host 1: rank 2, rank 3      piece across hosts, whose dot products the ranks of a host add up,
//                               so that they are of the whole tensors; all-gather inside

#include <cstddef>
#include <span>

#include "base/status.h"
#include "coordinator/operations.h"
#include "coordinator/tensor_memory.h"
#include "nccl.h"

namespace tutti::coordinator {

// Vectors of fewer bytes are exchanged whole. Among n ranks halving saves log₂ n - 2 + 2/n times S
// bytes and costs log₂ n (log₂ n + 3) / 2 more messages: with eight ranks, messages of 10 us and 5
// GB/s the two are equal at 360 KB. Halving also computes less.
inline constexpr size_t kAdasumHalvesBytes = 256 << 10;

// The vector to combine and the buffers for the work, all in the same memory.
struct AdasumVectors {
  ncclDataType_t type = ncclFloat32;  // or ncclFloat64
  // How many elements each tensor has. Tensors lie one behind another.
  std::span<const size_t> counts;
  std::byte* vector = nullptr;   // the vector of this rank, and the result
  std::byte* scratch = nullptr;  // as long
  double* dots = nullptr;        // AdasumDotsBytes
  // The place of the three buffers.
  TensorMemory::Place place;
};
// Returns how many bytes `dots` takes for so many tensors and ranks of a host; 1 in one level.
size_t AdasumDotsBytes(size_t tensors, int local_size);

// Combines the tensors of all ranks in place, each tensor by itself. A tensor of zeros leaves its
// partner in a pair unchanged. Vectors from `halves_bytes` on are combined by halving.
Status Adasum(Operations& operations, int rank, int num_ranks, const AdasumVectors& vectors,
              size_t halves_bytes = kAdasumHalvesBytes);

// Does the same with the averages of hosts, which have equally many ranks. Pieces from
// `halves_bytes` on are combined by halving.
Status AdasumInTwoLevels(const TwoLevels& levels, const AdasumVectors& vectors,
                         size_t halves_bytes = kAdasumHalvesBytes);

}  // namespace tutti::coordinator
