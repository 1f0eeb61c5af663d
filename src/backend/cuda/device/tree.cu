#include "backend/cuda/device/kernel.h"
#include "backend/cuda/tree_kernel.h"

#define TUTTI_TREE_KERNEL(name, T) \
  TUTTI_KERNEL_OF(tutti_##name##_tree, TreeArgs, tutti::cuda::kChannelThreads, 1, RunTree<T>)

TUTTI_FOR_ALL_TYPES(TUTTI_TREE_KERNEL)
