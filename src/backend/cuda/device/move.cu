#include "backend/cuda/device/kernel.h"

TUTTI_LINE_KERNEL(tutti_line_move) {
  tutti::cuda::RunMove<tutti::cuda::LinePrimitives>(args, blockIdx.x);
}
TUTTI_WIDE_KERNEL(tutti_wide_move) {
  tutti::cuda::RunMove<tutti::cuda::WidePrimitives>(args, blockIdx.x);
}
TUTTI_KERNEL(tutti_bulk_move) {
  tutti::cuda::RunMove<tutti::cuda::BulkPrimitives>(args, blockIdx.x);
}
TUTTI_KERNEL(tutti_ring_move) { tutti::cuda::RunRingMove(args, blockIdx.x); }
TUTTI_SYMMETRIC_KERNEL(tutti_symmetric_move) { tutti::cuda::RunSymmetricMove(args, blockIdx.x); }
