#include "backend/cuda/device/kernel.h"
#include "backend/cuda/relay_kernel.h"

TUTTI_KERNEL_OF(tutti_relay, RelayArgs, tutti::cuda::kRelayThreads, 1, RunRelay)
