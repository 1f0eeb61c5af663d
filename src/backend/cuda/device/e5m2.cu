#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(e5m2, tutti::cuda::E5m2)
