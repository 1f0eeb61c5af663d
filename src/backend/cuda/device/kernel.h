#pragma once

// The frame of the kernels. Kernels have C names, since device.cc looks them up by name.

#include "backend/cuda/target.h"
#include "plan/mesh_limits.h"

// `...`: the function that each block runs. Kernels may be on the GPU before their turn
// (StartInTurn).
#define TUTTI_KERNEL_OF(name, Args, threads, blocks_each, ...)       \
  extern "C" __global__ void __launch_bounds__(threads, blocks_each) \
      name(const __grid_constant__ tutti::cuda::Args args) {         \
    tutti::cuda::StartInTurn(gridDim.x <= tutti::kEarlyBlocks);      \
    const uint32_t block = blockIdx.x;                               \
    tutti::cuda::__VA_ARGS__(args, block);                           \
  }

// KERNEL(name, T) for each type of elements.
#define TUTTI_FOR_ALL_TYPES(KERNEL) \
  KERNEL(i8, int8_t)                \
  KERNEL(u8, uint8_t)               \
  KERNEL(i32, int32_t)              \
  KERNEL(u32, uint32_t)             \
  KERNEL(i64, int64_t)              \
  KERNEL(u64, uint64_t)             \
  KERNEL(f16, tutti::cuda::Half)    \
  KERNEL(f32, float)                \
  KERNEL(f64, double)               \
  KERNEL(bf16, tutti::cuda::Bfloat) \
  KERNEL(e4m3, tutti::cuda::E4m3)   \
  KERNEL(e5m2, tutti::cuda::E5m2)
