#include "backend/cuda/channel_ring.h"
#include "backend/cuda/device/kernel.h"

#define TUTTI_CHANNEL_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, ChannelArgs, tutti::cuda::kChannelThreads, 1, __VA_ARGS__)

#define TUTTI_CHANNEL_REDUCTION(name, T) \
  TUTTI_CHANNEL_KERNEL(tutti_##name##_channel, RunChannelReduction<T>)

TUTTI_FOR_ALL_TYPES(TUTTI_CHANNEL_REDUCTION)
TUTTI_CHANNEL_KERNEL(tutti_move_channel, RunChannelMove)
