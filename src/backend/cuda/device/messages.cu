#include "backend/cuda/device/kernel.h"
#include "backend/cuda/message_kernel.h"

// One block of many threads on a multiprocessor, or two of few: more would have to keep registers
// in memory, which each fence waits for.
TUTTI_KERNEL_OF(tutti_messages, MessageArgs, tutti::cuda::kManyThreads, 1, RunMessages)
