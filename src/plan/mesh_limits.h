#pragma once

// Defines numbers that the planners of GPUs (plan/mesh_rows.cc, plan/channel_rows.cc) and the
// kernels share. Device code includes this header.

#include <cstddef>
#include <cstdint>

namespace tutti {

// The most blocks of a kernel that may be on the GPU before the previous kernel of its stream has
// ended. Such a kernel only waits there, but takes multiprocessors from the number that BlocksFor
// and LoneBlocksFor (plan/mesh.h) grant a communicator.
inline constexpr uint32_t kEarlyBlocks = 64;
// The most blocks of a kernel.
inline constexpr uint32_t kMaxBlocks = 128;
// The bytes of data in a line of 16 bytes of LL.
inline constexpr size_t kLLData = 8;
// The lines of 16 bytes in a slot for LL: one for each thread of a block, and a block has at most
// this many threads.
inline constexpr size_t kLLLines = 256;
// Messages of at most this many bytes go by LL.
inline constexpr size_t kLLMessage = 16 << 10;
// The lengths of a pair of lines of 128 bytes, as LL128 uses them: 256 bytes with 240 bytes of
// data. Eight threads share 15 times 16 bytes more easily than the 120 bytes of a single line.
// kLL128RoundBytes is the length of a block's round for all ranks together.
inline constexpr size_t kLL128PairBytes = 256;
inline constexpr size_t kLL128PairData = 240;
inline constexpr size_t kLL128RoundBytes = 36 << 10;
// Returns the bytes of a slot for LL128, with its flags and without.
constexpr size_t LL128SlotBytes(int num_ranks) {
  return kLL128RoundBytes / static_cast<size_t>(num_ranks) / kLL128PairBytes * kLL128PairBytes;
}
constexpr size_t LL128SlotData(int num_ranks) {
  return LL128SlotBytes(num_ranks) / kLL128PairBytes * kLL128PairData;
}
// The most threads of a block that works by LL128 or between registered buffers.
inline constexpr uint32_t kLL128Threads = 384;
// The most channels that join GPUs by FIFOs.
inline constexpr uint32_t kMostGpuChannels = 8;
// The most ranks of a one-shot reduction over FIFOs: a kernel's arguments have room for this many
// FIFOs.
inline constexpr int kMostOneShotRanks = 8;
// The fewest ranks with AllReduces by trees, for GPUs that channels join. Among fewer ranks every
// other algorithm was measured to be faster (bench/results/gpu.md), by more than the estimates
// tell, and trees serve only where NCCL_ALGO allows nothing else.
inline constexpr int kFewestTreeRanks = kMostOneShotRanks + 1;

}  // namespace tutti
