#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(f64, double)
