#pragma once

// The arguments of the kernel for Adasum's arithmetic: a step of tutti/tutti.h for some tensors.

#include <cstddef>
#include <cstdint>

#include "base/datatype.h"
#include "base/rounding.h"

namespace tutti::cuda {

enum class AdasumStep : uint32_t {
  kConvert,   // out = factor × a, in another type
  kMultiply,  // the dot products of a and b, separately for each part of a tensor
  kSumParts,  // the sums of a tensor's dot products over its parts
  kSumDots,   // the sums of several ranks' dot products, number by number
  kCombine,   // out = adasum(a, b)
};

// The dot products of two vectors.
struct AdasumDots {
  double ab, aa, bb;
};

// A tensor, and for kSumDots all numbers. Counts are elements, or numbers.
struct AdasumPiece {
  const void* a = nullptr;
  const void* b = nullptr;
  void* out = nullptr;  // kMultiply: one AdasumDots for each part
  size_t count = 0;
};

inline constexpr uint32_t kAdasumThreads = 256;
// The elements on which a block works at a time. So many make the cost of beginning negligible.
inline constexpr size_t kAdasumSlice = 8192;
// The most parts in which a tensor's dot products are taken, one for each block that takes part. A
// large GPU has about as many multiprocessors, each of which keeps up with its share of the memory.
// The order of the sums, and therefore the result, depends on this constant.
inline constexpr size_t kMostAdasumParts = 128;
inline constexpr size_t kMostAdasumPieces = 120;  // the room in a kernel's arguments

struct AdasumArgs {
  AdasumStep step = AdasumStep::kConvert;
  DataType type = DataType::kFloat32;  // kConvert: the tensor's type
  bool narrows = false;                // kConvert: from the vector's type to the tensor's
  bool wide = false;                   // the vectors are f64
  uint32_t num_pieces = 0;
  uint32_t blocks = 1;
  double factor = 1;
  const AdasumDots* dots = nullptr;  // kCombine: one for each piece
  // kSumDots: adds up a[i × count + j] over all i below num_arrays
  size_t num_arrays = 1;
  AdasumPiece pieces[kMostAdasumPieces];
};
static_assert(sizeof(AdasumArgs) <= 4096 - 64);

// The parts in which the dot products of a tensor are taken.
struct AdasumParts {
  size_t number;
  size_t length;  // of each part; the last parts may be shorter, or empty
};
constexpr AdasumParts PartsOf(size_t count) {
  size_t number = DivUp(count, kAdasumSlice);
  if (number == 0) number = 1;
  if (number > kMostAdasumParts) number = kMostAdasumParts;
  return {number, DivUp(count, number)};
}

// Returns into how many units a piece is divided. Blocks take units in turn.
constexpr size_t UnitsOf(AdasumStep step, const AdasumPiece& piece) {
  if (step == AdasumStep::kSumParts) return 1;
  if (step == AdasumStep::kMultiply) return PartsOf(piece.count).number;
  return DivUp(piece.count, kAdasumSlice);
}

}  // namespace tutti::cuda
