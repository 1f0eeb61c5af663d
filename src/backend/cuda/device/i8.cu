#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(i8, int8_t)
