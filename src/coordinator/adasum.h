#pragma once

// Adasum: a sum of gradients that is careful about what they have in common. Of two vectors
//
//   adasum(a, b) = (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b
//
// so that orthogonal vectors are added and parallel ones averaged (Maleki et al., "Scaling
// Distributed Training with Adaptive Summation", 2020). More vectors are combined pair by pair, in
// a tree over the ranks.
//
//   n = 6:  0+4 → 0, 1+5 → 1     ranks beyond the largest power of two bring theirs to a partner
//           0+1, 2+3             recursive doubling, after which 0 … 3 hold the result
//           01+23
//           0 → 4, 1 → 5         and give it back
//
// Vectors are held in f32 (f64 for f64) throughout, dot products in f64. Both partners of a pair
// compute the same numbers in the same order, so that all ranks have the same bits.

#include <cstddef>

#include "base/status.h"
#include "coordinator/operations.h"

namespace tutti::coordinator {

// a = adasum(a, b). A vector of zeros leaves the other as it is.
void AdasumPair(float* a, const float* b, size_t count);
void AdasumPair(double* a, const double* b, size_t count);

// Combines the vectors of all ranks in place. `scratch` holds `count` elements.
Status Adasum(Operations& operations, int rank, int num_ranks, float* vector, float* scratch,
              size_t count);
Status Adasum(Operations& operations, int rank, int num_ranks, double* vector, double* scratch,
              size_t count);

}  // namespace tutti::coordinator
