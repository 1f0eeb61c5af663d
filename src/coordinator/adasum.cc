#include "coordinator/adasum.h"

#include <bit>
#include <cstring>

namespace tutti::coordinator {
namespace {

template <typename T>
void CombinePair(T* a, const T* b, size_t count) {
  double dot = 0, square_a = 0, square_b = 0;
  for (size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(a[i]);
    const double y = static_cast<double>(b[i]);
    dot += x * y;
    square_a += x * x;
    square_b += y * y;
  }
  const double factor_a = square_a == 0 ? 1 : 1 - dot / (2 * square_a);
  const double factor_b = square_b == 0 ? 1 : 1 - dot / (2 * square_b);
  for (size_t i = 0; i < count; ++i) {
    a[i] =
        static_cast<T>(factor_a * static_cast<double>(a[i]) + factor_b * static_cast<double>(b[i]));
  }
}

// The vector of the lower rank of a pair comes first on both sides.
template <typename T>
void CombineInOrder(T* vector, T* other, size_t count, bool mine_first) {
  if (mine_first) {
    CombinePair(vector, other, count);
    return;
  }
  CombinePair(other, vector, count);
  std::memcpy(vector, other, count * sizeof(T));
}

template <typename T>
Status Combine(Operations& operations, int rank, int num_ranks, T* vector, T* scratch,
               size_t count) {
  const size_t bytes = count * sizeof(T);
  if (bytes == 0) return Status::Ok();
  const int core = static_cast<int>(std::bit_floor(static_cast<unsigned>(num_ranks)));
  const int extra = num_ranks - core;
  if (rank >= core) {
    TUTTI_TRY(operations.SendReceive(vector, bytes, rank - core, nullptr, 0, -1));
    return operations.SendReceive(nullptr, 0, -1, vector, bytes, rank - core);
  }
  if (rank < extra) {
    TUTTI_TRY(operations.SendReceive(nullptr, 0, -1, scratch, bytes, rank + core));
    CombinePair(vector, scratch, count);
  }
  for (int distance = 1; distance < core; distance *= 2) {
    const int peer = rank ^ distance;
    TUTTI_TRY(operations.SendReceive(vector, bytes, peer, scratch, bytes, peer));
    CombineInOrder(vector, scratch, count, rank < peer);
  }
  if (rank < extra) return operations.SendReceive(vector, bytes, rank + core, nullptr, 0, -1);
  return Status::Ok();
}

}  // namespace

void AdasumPair(float* a, const float* b, size_t count) { CombinePair(a, b, count); }
void AdasumPair(double* a, const double* b, size_t count) { CombinePair(a, b, count); }

Status Adasum(Operations& operations, int rank, int num_ranks, float* vector, float* scratch,
              size_t count) {
  return Combine(operations, rank, num_ranks, vector, scratch, count);
}
Status Adasum(Operations& operations, int rank, int num_ranks, double* vector, double* scratch,
              size_t count) {
  return Combine(operations, rank, num_ranks, vector, scratch, count);
}

}  // namespace tutti::coordinator
