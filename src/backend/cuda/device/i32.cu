#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(i32, int32_t)
