#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/device/kernel.h"

TUTTI_KERNEL_OF(tutti_copies, CopyArgs, tutti::cuda::kCopyThreads, 2, RunCopies)
