#include "backend/cuda/mesh_kernel.h"

TUTTI_REDUCTION(f64, double)
