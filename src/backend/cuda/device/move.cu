#include "backend/cuda/mesh_kernel.h"

TUTTI_LL_KERNEL(tutti_ll_move, RunMove<tutti::cuda::LLPrimitives>)
TUTTI_LL128_KERNEL(tutti_ll128_move, RunMove<tutti::cuda::LL128Primitives>)
TUTTI_KERNEL(tutti_simple_move, RunMove<tutti::cuda::SimplePrimitives>)
TUTTI_KERNEL(tutti_ring_move, RunRingMove)
TUTTI_SYMMETRIC_KERNEL(tutti_symmetric_move, RunSymmetricMove)
