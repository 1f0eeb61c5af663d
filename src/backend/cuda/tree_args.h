#pragma once

// Plain values that the host passes to the kernels of trees (gpu/channel_trees.h).

#include "backend/cuda/channel_args.h"

namespace tutti::cuda {

// The most neighbours of a node on either side: two heads of other hosts and a rank of its own.
inline constexpr uint32_t kMostTreeLinks = 3;
// Both ways of all trees: a tree takes two channels.
inline constexpr uint32_t kMostTreeNodes = kMostGpuChannels;

// One node of a tree, which a block runs. Unused ends have no count.
struct TreeNodeArgs {
  DeviceFifo from[kMostTreeLinks];
  DeviceFifo to[kMostTreeLinks];
  size_t begin = 0;  // the first element
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
  size_t slice_elems = 0;  // the length of a slot
  ReduceArgs reduce;
  uint32_t num_nodes = 0;
  TreeNodeArgs nodes[kMostTreeNodes];
};
static_assert(sizeof(TreeArgs) <= 4096 - 64);

}  // namespace tutti::cuda
