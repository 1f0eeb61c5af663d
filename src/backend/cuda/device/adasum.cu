#include "backend/cuda/adasum_kernel.h"
#include "backend/cuda/device/kernel.h"

TUTTI_KERNEL_OF(tutti_adasum, AdasumArgs, tutti::cuda::kAdasumThreads, 4, RunAdasum)
