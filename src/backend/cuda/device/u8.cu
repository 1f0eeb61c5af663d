#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(u8, uint8_t)
