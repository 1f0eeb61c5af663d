#include "backend/cuda/device/kernel.h"
#include "backend/cuda/message_kernel.h"

// A multiprocessor runs one block of many threads, or two blocks of few. More blocks would keep
// registers in memory, and every fence would wait for those stores.
TUTTI_KERNEL_OF(tutti_messages, MessageArgs, tutti::cuda::kManyThreads, 1, RunMessages)
