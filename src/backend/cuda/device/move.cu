#include "backend/cuda/device/kernel.h"

TUTTI_LINE_KERNEL(tutti_line_move, RunMove<tutti::cuda::LinePrimitives>)
TUTTI_WIDE_KERNEL(tutti_wide_move, RunMove<tutti::cuda::WidePrimitives>)
TUTTI_KERNEL(tutti_bulk_move, RunMove<tutti::cuda::BulkPrimitives>)
TUTTI_KERNEL(tutti_ring_move, RunRingMove)
TUTTI_SYMMETRIC_KERNEL(tutti_symmetric_move, RunSymmetricMove)
