#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(u32, uint32_t)
