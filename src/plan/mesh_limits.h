#pragma once

// Numbers that the planners of GPUs (plan/mesh_rows.cc, plan/channel_rows.cc) and the kernels share.
// Device code includes this.

#include <cstddef>
#include <cstdint>

namespace tutti {

// A kernel of at most this many blocks may be on the GPU before the last one of its stream has
// ended. It only waits there, but it takes the multiprocessors that BlocksFor and LoneBlocksFor
// (plan/mesh.h) give a communicator.
inline constexpr uint32_t kEarlyBlocks = 64;
// The most blocks of a kernel.
inline constexpr uint32_t kMaxBlocks = 128;
// The bytes of data in a line of 16 bytes of LL.
inline constexpr size_t kLLData = 8;
// The lines of 16 bytes in a slot for LL: one for each thread of a block, which has at most this
// many threads.
inline constexpr size_t kLLLines = 256;
// Messages of at most this many bytes go by LL.
inline constexpr size_t kLLMessage = 16 << 10;
// Lines of 128 bytes come in pairs, 256 bytes of which 240 are data, since 15 times 16 bytes are
// easier to share out among eight threads than the 120 of one. A round of a block has so many bytes
// of them for all ranks together.
inline constexpr size_t kLL128PairBytes = 256;
inline constexpr size_t kLL128PairData = 240;
inline constexpr size_t kLL128RoundBytes = 36 << 10;
// Returns what a slot for LL128 holds, with its flags and without.
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
// The most ranks among which a reduction over FIFOs goes in one shot: a kernel's arguments have
// room for so many FIFOs.
inline constexpr int kMostOneShotRanks = 8;
// From so many ranks on AllReduces of GPUs that channels join go by trees where trees take the
// least time. Among fewer ranks every other way was measured to be faster (bench/results/gpu.md), by
// more than the estimates tell: they use trees only where NCCL_ALGO leaves nothing else that serves.
inline constexpr int kFewestTreeRanks = kMostOneShotRanks + 1;

}  // namespace tutti
