#include "backend/cuda/channel_ring.h"
#include "backend/cuda/device/kernel.h"

#define TUTTI_CHANNEL_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, ChannelArgs, tutti::cuda::kChannelThreads, 1, __VA_ARGS__)

TUTTI_CHANNEL_KERNEL(tutti_i8_channel, RunChannelReduction<int8_t>)
TUTTI_CHANNEL_KERNEL(tutti_u8_channel, RunChannelReduction<uint8_t>)
TUTTI_CHANNEL_KERNEL(tutti_i32_channel, RunChannelReduction<int32_t>)
TUTTI_CHANNEL_KERNEL(tutti_u32_channel, RunChannelReduction<uint32_t>)
TUTTI_CHANNEL_KERNEL(tutti_i64_channel, RunChannelReduction<int64_t>)
TUTTI_CHANNEL_KERNEL(tutti_u64_channel, RunChannelReduction<uint64_t>)
TUTTI_CHANNEL_KERNEL(tutti_f16_channel, RunChannelReduction<tutti::cuda::Half>)
TUTTI_CHANNEL_KERNEL(tutti_f32_channel, RunChannelReduction<float>)
TUTTI_CHANNEL_KERNEL(tutti_f64_channel, RunChannelReduction<double>)
TUTTI_CHANNEL_KERNEL(tutti_bf16_channel, RunChannelReduction<tutti::cuda::Bfloat>)
TUTTI_CHANNEL_KERNEL(tutti_e4m3_channel, RunChannelReduction<tutti::cuda::E4m3>)
TUTTI_CHANNEL_KERNEL(tutti_e5m2_channel, RunChannelReduction<tutti::cuda::E5m2>)
TUTTI_CHANNEL_KERNEL(tutti_move_channel, RunChannelMove)
