#pragma once

// The kernel that copies pieces (copy_args.h).

#include "backend/cuda/copy_args.h"
#include "backend/cuda/mesh_primitives.h"

namespace tutti::cuda {

// Blocks take the slices of all pieces in turn.
TUTTI_HD void RunCopies(const CopyArgs& args, uint32_t block) {
  // slices: this block's next slice, and the slices of earlier pieces
  size_t mine = block, begun = 0;
  TUTTI_UNROLL_BY(1)
  for (uint32_t p = 0; p < args.num_pieces; ++p) {
    const CopyPiece& piece = args.pieces[p];
    const size_t slices = DivUp(piece.bytes, kCopySlice);
    TUTTI_UNROLL_BY(1)
    for (; mine < begun + slices; mine += args.blocks) {
      const size_t at = (mine - begun) * kCopySlice;
      CopyByBlock(piece.to + at, piece.from + at, ClampChunk(at, kCopySlice, piece.bytes));
    }
    begun += slices;
  }
}

}  // namespace tutti::cuda
