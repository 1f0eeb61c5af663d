#pragma once

// Copies of many pieces by one kernel, as when small vectors are packed into a large one.

#include <cstddef>
#include <cstdint>

#include "plan/copy_piece.h"

namespace tutti::cuda {

inline constexpr size_t kMostCopies = 160;      // the room in a kernel's arguments
inline constexpr size_t kCopySlice = 16 << 10;  // the bytes that a block copies at a time
inline constexpr uint32_t kCopyThreads = 256;

struct CopyArgs {
  uint32_t num_pieces = 0;
  uint32_t blocks = 1;
  CopyPiece pieces[kMostCopies];  // without overlaps
};
static_assert(sizeof(CopyArgs) <= 4096 - 64);

}  // namespace tutti::cuda
