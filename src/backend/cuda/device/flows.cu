#include "backend/cuda/device/kernel.h"
#include "backend/cuda/flow_kernel.h"

TUTTI_KERNEL_OF(tutti_flows, FlowArgs, tutti::cuda::kChannelThreads, 1, RunFlows)
