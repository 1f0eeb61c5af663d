#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(e5m2, tutti::cuda::E5m2)
