#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(e4m3, tutti::cuda::E4m3)
