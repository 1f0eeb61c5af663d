#pragma once

// The frame of the kernels. device_code.cc looks them up by name, so they have C names.

#include "backend/cuda/mesh_kernel.h"

#define TUTTI_KERNEL_OF(name, threads, blocks_each)                  \
  extern "C" __global__ void __launch_bounds__(threads, blocks_each) \
      name(const __grid_constant__ tutti::cuda::MeshArgs args)
#define TUTTI_KERNEL(name) TUTTI_KERNEL_OF(name, tutti::cuda::kLines, 2)
// Lines of all peers at once take many registers, and small messages few blocks.
#define TUTTI_LINE_KERNEL(name) TUTTI_KERNEL_OF(name, tutti::cuda::kLines, 1)
#define TUTTI_WIDE_KERNEL(name) TUTTI_KERNEL_OF(name, tutti::cuda::kWideThreads, 1)

#define TUTTI_SYMMETRIC_KERNEL(name)                                         \
  extern "C" __global__ void __launch_bounds__(tutti::cuda::kWideThreads, 1) \
      name(const __grid_constant__ tutti::cuda::SymmetricArgs args)

#define TUTTI_REDUCTION(name, T)                                                          \
  TUTTI_LINE_KERNEL(tutti_line_##name) {                                                  \
    tutti::cuda::RunReduction<T, tutti::cuda::LinePrimitives>(args, blockIdx.x);          \
  }                                                                                       \
  TUTTI_WIDE_KERNEL(tutti_wide_##name) {                                                  \
    tutti::cuda::RunReduction<T, tutti::cuda::WidePrimitives>(args, blockIdx.x);          \
  }                                                                                       \
  TUTTI_KERNEL(tutti_bulk_##name) {                                                       \
    tutti::cuda::RunReduction<T, tutti::cuda::BulkPrimitives>(args, blockIdx.x);          \
  }                                                                                       \
  TUTTI_KERNEL(tutti_ring_##name) { tutti::cuda::RunRingReduction<T>(args, blockIdx.x); } \
  TUTTI_SYMMETRIC_KERNEL(tutti_symmetric_##name) {                                        \
    tutti::cuda::RunSymmetricReduction<T>(args, blockIdx.x);                              \
  }
