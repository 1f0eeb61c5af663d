#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(f32, float)
