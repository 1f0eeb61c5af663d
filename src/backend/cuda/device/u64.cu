#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(u64, uint64_t)
