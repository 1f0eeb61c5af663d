#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(f32, float)
