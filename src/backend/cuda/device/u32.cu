#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(u32, uint32_t)
