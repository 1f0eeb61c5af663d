#pragma once

// The frame of the kernels. Kernels have C names, since device.cc looks them up by name.

#include "backend/cuda/mesh_kernel.h"

// `...`: the function that each block runs. Kernels may be on the GPU before their turn
// (StartInTurn).
#define TUTTI_KERNEL_OF(name, Args, threads, blocks_each, ...)       \
  extern "C" __global__ void __launch_bounds__(threads, blocks_each) \
      name(const __grid_constant__ tutti::cuda::Args args) {         \
    tutti::cuda::StartInTurn(gridDim.x <= tutti::kEarlyBlocks);      \
    const uint32_t block = blockIdx.x;                               \
    tutti::cuda::__VA_ARGS__(args, block);                           \
  }
#define TUTTI_KERNEL(name, ...) TUTTI_KERNEL_OF(name, MeshArgs, tutti::kLLLines, 2, __VA_ARGS__)
// The LL lines of all peers at once take many registers, and small messages need few blocks.
#define TUTTI_LL_KERNEL(name, ...) TUTTI_KERNEL_OF(name, MeshArgs, tutti::kLLLines, 1, __VA_ARGS__)
#define TUTTI_LL128_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, MeshArgs, tutti::kLL128Threads, 1, __VA_ARGS__)
#define TUTTI_SYMMETRIC_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, SymmetricArgs, tutti::kLL128Threads, 1, __VA_ARGS__)

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

#define TUTTI_REDUCTION(name, T)                                                        \
  TUTTI_LL_KERNEL(tutti_ll_##name, RunReduction<T, tutti::cuda::LLPrimitives>)          \
  TUTTI_LL128_KERNEL(tutti_ll128_##name, RunReduction<T, tutti::cuda::LL128Primitives>) \
  TUTTI_KERNEL(tutti_simple_##name, RunReduction<T, tutti::cuda::SimplePrimitives>)     \
  TUTTI_KERNEL(tutti_ring_##name, RunRingReduction<T>)                                  \
  TUTTI_SYMMETRIC_KERNEL(tutti_symmetric_##name, RunSymmetricReduction<T>)
