#include "backend/cuda/channel_mesh.h"
#include "backend/cuda/device/kernel.h"

#define TUTTI_ONE_SHOT_KERNEL(name, T)                                                  \
  TUTTI_KERNEL_OF(tutti_##name##_oneshot, ChannelArgs, tutti::cuda::kOneShotThreads, 1, \
                  RunOneShotReduction<T>)

TUTTI_FOR_ALL_TYPES(TUTTI_ONE_SHOT_KERNEL)
