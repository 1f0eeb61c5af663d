#pragma once

// Numbers that the planner of GPUs (plan/mesh.h) and the kernels share. Device code includes this.

#include <cstddef>
#include <cstdint>

namespace tutti {

// A kernel of at most this many blocks may be on the GPU before the last one of its stream has
// ended. It only waits there, but it takes the multiprocessors that BlocksFor and LoneBlocksFor
// (plan/mesh.h) give a communicator.
inline constexpr uint32_t kEarlyBlocks = 64;
// The bytes of data in a line of 16 bytes of LL.
inline constexpr size_t kLLData = 8;
// The most threads of a block that works by LL128 or between registered buffers.
inline constexpr uint32_t kLL128Threads = 384;

}  // namespace tutti
