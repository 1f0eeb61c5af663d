#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(i64, int64_t)
