#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(i64, int64_t)
