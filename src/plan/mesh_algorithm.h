#pragma once

// What the host tells a kernel of the mesh to run. Apart from plan/mesh.h because device code
// includes it.

#include <cstddef>
#include <cstdint>

namespace tutti {

// A kernel of so many blocks or fewer may be on the GPU before the last one of its stream has
// ended. It only waits there, but in the room that BlocksFor and LoneBlocksFor (plan/mesh.h) give a
// communicator.
inline constexpr uint32_t kEarlyBlocks = 64;
inline constexpr size_t kLLData = 8;  // bytes of data in an LL line of 16
inline constexpr uint32_t kLL128Threads =
    384;  // at most, of a block for LL128 or registered buffers

// The algorithms of kernels/mesh.h, and those of kernels/ring.h, by number.
enum class MeshAlgorithm : uint8_t {
  kAllReduceOneShot,
  kAllReduceTwoShot,
  kReduceScatter,
  kReduceOneShot,
  kReduceTwoShot,
  kAllReduceRing,
  kReduceScatterRing,
  kReduceChain,
  // Where all ranks reach the buffers themselves (ncclCommWindowRegister).
  kAllReduceSymmetric,
  kReduceScatterSymmetric,
  kAllGather,
  kAlltoAll,
  kBroadcastOneShot,
  kBroadcastTwoShot,
  kScatter,
  kGather,
  kAllGatherRing,
  kBroadcastChain,
  kAllGatherSymmetric,
  // AlltoAll, Gather and Scatter as what they are made of: a message between each pair.
  kMessages,
};
// Those from kAllGather on only move bytes.
constexpr bool Reduces(MeshAlgorithm a) { return a < MeshAlgorithm::kAllGather; }
// Those in which data go from neighbour to neighbour.
constexpr bool IsRing(MeshAlgorithm a) {
  return (a >= MeshAlgorithm::kAllReduceRing && a <= MeshAlgorithm::kReduceChain) ||
         a == MeshAlgorithm::kAllGatherRing || a == MeshAlgorithm::kBroadcastChain;
}

// Those in two rounds: to the owners of the parts, and from these to all.
constexpr bool IsTwoShot(MeshAlgorithm a) {
  return a == MeshAlgorithm::kAllReduceTwoShot || a == MeshAlgorithm::kReduceTwoShot ||
         a == MeshAlgorithm::kBroadcastTwoShot;
}

constexpr bool IsSymmetric(MeshAlgorithm a) {
  return a == MeshAlgorithm::kAllReduceSymmetric || a == MeshAlgorithm::kReduceScatterSymmetric ||
         a == MeshAlgorithm::kAllGatherSymmetric;
}

}  // namespace tutti
