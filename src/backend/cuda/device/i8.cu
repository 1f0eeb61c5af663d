#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(i8, int8_t)
