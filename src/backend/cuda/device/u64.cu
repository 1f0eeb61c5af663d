#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(u64, uint64_t)
