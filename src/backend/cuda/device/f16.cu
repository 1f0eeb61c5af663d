#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(f16, tutti::cuda::Half)
