#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(e4m3, tutti::cuda::E4m3)
