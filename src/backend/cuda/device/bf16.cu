#include "backend/cuda/device/kernel.h"

TUTTI_REDUCTION(bf16, tutti::cuda::Bfloat)
