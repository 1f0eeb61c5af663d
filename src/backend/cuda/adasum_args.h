#pragma once

// What the kernel of Adasum's arithmetic is told: one step of those that tutti/tutti.h offers, for
// some tensors.

#include <cstddef>
#include <cstdint>

#include "base/datatype.h"
#include "base/rounding.h"

namespace tutti::cuda {

enum class AdasumStep : uint32_t {
  kConvert,   // out = factor × a, in another type
  kMultiply,  // the dot products of a and b, of each part of a tensor by itself
  kSumParts,  // those of the whole tensor, from those of its parts
  kSumDots,   // dot products of several ranks, number by number
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
  void* out = nullptr;  // kMultiply: one AdasumDots a part
  size_t count = 0;
};

inline constexpr uint32_t kAdasumThreads = 256;
// A block works on so many elements at a time: enough that what it costs to begin does not count.
inline constexpr size_t kAdasumSlice = 8192;
// A tensor's dot products are taken in up to so many parts, one for each block that takes part:
// about as many as a large GPU has multiprocessors, each of which keeps up with its share of the
// memory. The order of the sums, and so the result, depends on this.
inline constexpr size_t kMostAdasumParts = 128;
inline constexpr size_t kMostAdasumPieces = 120;  // A kernel's arguments hold so many.

struct AdasumArgs {
  AdasumStep step = AdasumStep::kConvert;
  DataType type = DataType::kFloat32;  // kConvert: that of the tensor
  bool narrows = false;                // kConvert: from the vector's type to the tensor's
  bool wide = false;                   // The vectors are f64.
  uint32_t num_pieces = 0;
  uint32_t blocks = 1;
  double factor = 1;
  const AdasumDots* dots = nullptr;  // kCombine: one for each piece
  size_t num_arrays = 1;             // kSumDots: a[i × count + j], i below this, are added up
  AdasumPiece pieces[kMostAdasumPieces];
};
static_assert(sizeof(AdasumArgs) <= 4096 - 64);

// The parts in which the dot products of a tensor are taken.
struct AdasumParts {
  size_t number;
  size_t length;  // of each; the last ones may be shorter, or empty
};
constexpr AdasumParts PartsOf(size_t count) {
  size_t number = DivUp(count, kAdasumSlice);
  if (number == 0) number = 1;
  if (number > kMostAdasumParts) number = kMostAdasumParts;
  return {number, DivUp(count, number)};
}

// Returns into how many units, which blocks take in turn, a piece is cut.
constexpr size_t UnitsOf(AdasumStep step, const AdasumPiece& piece) {
  if (step == AdasumStep::kSumParts) return 1;
  if (step == AdasumStep::kMultiply) return PartsOf(piece.count).number;
  return DivUp(piece.count, kAdasumSlice);
}

}  // namespace tutti::cuda
