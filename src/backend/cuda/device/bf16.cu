#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(bf16, tutti::cuda::Bfloat)
