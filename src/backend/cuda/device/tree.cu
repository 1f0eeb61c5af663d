#include "backend/cuda/device/kernel.h"
#include "backend/cuda/tree_kernel.h"

#define TUTTI_TREE_KERNEL(name, T) \
  TUTTI_KERNEL_OF(tutti_##name##_tree, TreeArgs, tutti::cuda::kChannelThreads, 1, RunTree<T>)

TUTTI_TREE_KERNEL(i8, int8_t)
TUTTI_TREE_KERNEL(u8, uint8_t)
TUTTI_TREE_KERNEL(i32, int32_t)
TUTTI_TREE_KERNEL(u32, uint32_t)
TUTTI_TREE_KERNEL(i64, int64_t)
TUTTI_TREE_KERNEL(u64, uint64_t)
TUTTI_TREE_KERNEL(f16, tutti::cuda::Half)
TUTTI_TREE_KERNEL(f32, float)
TUTTI_TREE_KERNEL(f64, double)
TUTTI_TREE_KERNEL(bf16, tutti::cuda::Bfloat)
TUTTI_TREE_KERNEL(e4m3, tutti::cuda::E4m3)
TUTTI_TREE_KERNEL(e5m2, tutti::cuda::E5m2)
