#include "backend/cuda/channel_mesh.h"
#include "backend/cuda/device/kernel.h"

#define TUTTI_ONE_SHOT_KERNEL(name, T)                                                  \
  TUTTI_KERNEL_OF(tutti_##name##_oneshot, ChannelArgs, tutti::cuda::kOneShotThreads, 1, \
                  RunOneShotReduction<T>)

TUTTI_ONE_SHOT_KERNEL(i8, int8_t)
TUTTI_ONE_SHOT_KERNEL(u8, uint8_t)
TUTTI_ONE_SHOT_KERNEL(i32, int32_t)
TUTTI_ONE_SHOT_KERNEL(u32, uint32_t)
TUTTI_ONE_SHOT_KERNEL(i64, int64_t)
TUTTI_ONE_SHOT_KERNEL(u64, uint64_t)
TUTTI_ONE_SHOT_KERNEL(f16, tutti::cuda::Half)
TUTTI_ONE_SHOT_KERNEL(f32, float)
TUTTI_ONE_SHOT_KERNEL(f64, double)
TUTTI_ONE_SHOT_KERNEL(bf16, tutti::cuda::Bfloat)
TUTTI_ONE_SHOT_KERNEL(e4m3, tutti::cuda::E4m3)
TUTTI_ONE_SHOT_KERNEL(e5m2, tutti::cuda::E5m2)
