#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(f16, tutti::cuda::Half)
