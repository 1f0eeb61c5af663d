#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(u8, uint8_t)
