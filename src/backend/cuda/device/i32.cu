#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(i32, int32_t)
