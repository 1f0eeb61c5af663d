#pragma once

// What the host tells a kernel of the mesh to run. Apart from plan/mesh.h because device code
// includes it.

#include <cstdint>

namespace tutti {

// The algorithms of kernels/mesh.h by number.
enum class MeshAlgorithm : uint8_t {
  kAllReduceOneShot,
  kAllReduceTwoShot,
  kReduceScatter,
  kReduceOneShot,
  kReduceTwoShot,
  kAllGather,
  kAlltoAll,
  kBroadcastOneShot,
  kBroadcastTwoShot,
  kScatter,
  kGather,
};
// Those from kAllGather on only move bytes.
constexpr bool Reduces(MeshAlgorithm a) { return a < MeshAlgorithm::kAllGather; }

}  // namespace tutti
