#pragma once

// The host hands this to the kernels of trees (gpu/channel_trees.h): plain values.

#include "backend/cuda/channel_args.h"

namespace tutti::cuda {

// A node has so many neighbours on either side: two heads of other hosts, and a rank of its own.
inline constexpr uint32_t kMostTreeLinks = 3;
// Both ways of all trees: a tree takes two channels.
inline constexpr uint32_t kMostTreeNodes = kMostGpuChannels;

// One node of a tree, which a block runs. Ends that are not used have no count.
struct TreeNodeArgs {
  DeviceFifo from[kMostTreeLinks];
  DeviceFifo to[kMostTreeLinks];
  size_t begin = 0;  // Its first element.
  size_t count = 0;
  uint32_t num_from = 0, num_to = 0;
  bool reads = false;
  bool is_final = false;
  bool writes = false;
};

struct TreeArgs {
  ChannelCommon common;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t slice_elems = 0;  // A slot takes so many.
  ReduceArgs reduce;
  uint32_t num_nodes = 0;
  TreeNodeArgs nodes[kMostTreeNodes];
};
static_assert(sizeof(TreeArgs) <= 4096 - 64);

}  // namespace tutti::cuda
