#pragma once

// The frame of the kernels. device_code.cc looks them up by name, so they have C names.

#include "backend/cuda/mesh_kernel.h"

#define TUTTI_KERNEL(name)                                             \
  extern "C" __global__ void __launch_bounds__(tutti::cuda::kLines, 2) \
      name(const __grid_constant__ tutti::cuda::MeshArgs args)

#define TUTTI_REDUCTION(name, T)                                                 \
  TUTTI_KERNEL(tutti_line_##name) {                                              \
    tutti::cuda::RunReduction<T, tutti::cuda::LinePrimitives>(args, blockIdx.x); \
  }                                                                              \
  TUTTI_KERNEL(tutti_bulk_##name) {                                              \
    tutti::cuda::RunReduction<T, tutti::cuda::BulkPrimitives>(args, blockIdx.x); \
  }
