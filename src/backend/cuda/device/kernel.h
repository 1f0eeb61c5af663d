#pragma once

// The frame of the kernels. device_code.cc looks them up by name, so they have C names.

#include "backend/cuda/mesh_kernel.h"

// `...`: what each block does. Kernels of one stream may be on the GPU before their turn: see
// StartInTurn.
#define TUTTI_KERNEL_OF(name, Args, threads, blocks_each, ...)       \
  extern "C" __global__ void __launch_bounds__(threads, blocks_each) \
      name(const __grid_constant__ tutti::cuda::Args args) {         \
    tutti::cuda::StartInTurn(gridDim.x <= tutti::kEarlyBlocks);      \
    const uint32_t block = blockIdx.x;                               \
    tutti::cuda::__VA_ARGS__(args, block);                           \
  }
#define TUTTI_KERNEL(name, ...) TUTTI_KERNEL_OF(name, MeshArgs, tutti::cuda::kLines, 2, __VA_ARGS__)
// Lines of all peers at once take many registers, and small messages few blocks.
#define TUTTI_LINE_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, MeshArgs, tutti::cuda::kLines, 1, __VA_ARGS__)
#define TUTTI_WIDE_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, MeshArgs, tutti::kWideThreads, 1, __VA_ARGS__)
#define TUTTI_SYMMETRIC_KERNEL(name, ...) \
  TUTTI_KERNEL_OF(name, SymmetricArgs, tutti::kWideThreads, 1, __VA_ARGS__)

#define TUTTI_REDUCTION(name, T)                                                     \
  TUTTI_LINE_KERNEL(tutti_line_##name, RunReduction<T, tutti::cuda::LinePrimitives>) \
  TUTTI_WIDE_KERNEL(tutti_wide_##name, RunReduction<T, tutti::cuda::WidePrimitives>) \
  TUTTI_KERNEL(tutti_bulk_##name, RunReduction<T, tutti::cuda::BulkPrimitives>)      \
  TUTTI_KERNEL(tutti_ring_##name, RunRingReduction<T>)                               \
  TUTTI_SYMMETRIC_KERNEL(tutti_symmetric_##name, RunSymmetricReduction<T>)
