#pragma once

// Plain values that the host passes to a kernel of the mesh.
//
// The window of a rank is the memory in which its peers write to the rank (its inboxes), plus its
// round counters. Each rank has one window for each communicator, and every peer maps the window.
//
//   0           uint64_t rounds[kMaxBlocks]                      only its owner; the next round
//   1 KiB       uint64_t views[kMaxBlocks]                       only its owner; a WindowView
//   2 KiB       uint64_t sent[kMaxBlocks], received[kMaxBlocks]  only their owner; steps of the ring
//   4 KiB       uint64_t flags[kMaxBlocks][kMaxMeshRanks]        by writer: rounds published
//   20 KiB      uint64_t tails[kMaxBlocks], heads[kMaxBlocks]    by the previous and the next rank
//   LL slots      FlaggedLine[blocks][kMeshSlots][ranks][kLLLines]    small messages
//   LL128 slots   bytes[blocks][kMeshSlots][ranks][LL128Bytes()]      middle ones
//   Simple slots  bytes[blocks][kMeshSlots][ranks][slot_bytes]        large ones
//
// Blocks are independent: block b of a rank exchanges data with block b of each peer only.
//
// A ring uses the Simple slots of a block too, as kRingSlots longer slots that only the previous
// rank writes. The window keeps the view of a block's slots from one operation to the next. The
// view also records that this rank has given up, because its communicator was aborted during a
// wait. A rank that has given up writes nothing to its peers any more, since they would take it for
// data. Before an operation in the other view, all ranks meet in a round without data. After this
// round nobody reads data in the old view any more.

#include <cstddef>
#include <cstdint>

#include "backend/cuda/elements.h"
#include "kernels/mesh.h"
#include "plan/algorithm_table.h"
#include "plan/mesh_limits.h"
#include "plan/work.h"

namespace tutti::cuda {

// The most GPUs of one machine. A kernel's arguments have room for their windows.
inline constexpr int kMaxMeshRanks = 16;
inline constexpr uint64_t kRingSlots = kMeshSlots;
// Says how the Simple slots of a block are used. Fresh memory has the view of a mesh.
enum class WindowView : uint64_t { kMesh, kRing, kGivenUp };

struct WindowLayout {
  int num_ranks = 1;
  size_t slot_bytes = 0;         // a multiple of 16
  uint32_t blocks = kMaxBlocks;  // blocks with slots, and the most blocks of a kernel

  static constexpr size_t kViewsAt = 1024;
  static constexpr size_t kSentAt = 2048;
  static constexpr size_t kReceivedAt = 3072;
  static constexpr size_t kFlagsAt = 4096;
  static constexpr size_t kTailsAt = 20480;
  static constexpr size_t kHeadsAt = 21504;
  static constexpr size_t kLLAt = 32768;
  constexpr size_t Slots() const {
    return size_t{blocks} * static_cast<size_t>(kMeshSlots) * static_cast<size_t>(num_ranks);
  }
  // Returns the size of an LL128 slot.
  constexpr size_t LL128Bytes() const { return LL128SlotBytes(num_ranks); }
  constexpr size_t LL128Data() const { return LL128SlotData(num_ranks); }
  constexpr size_t LL128At() const { return kLLAt + Slots() * kLLLines * sizeof(FlaggedLine); }
  constexpr size_t SimpleAt() const { return LL128At() + Slots() * LL128Bytes(); }
  constexpr size_t TotalBytes() const { return SimpleAt() + Slots() * slot_bytes; }
  constexpr size_t SlotIndex(uint32_t block, uint64_t round, int writer) const {
    return (static_cast<size_t>(block) * kMeshSlots + round % kMeshSlots) *
               static_cast<size_t>(num_ranks) +
           static_cast<size_t>(writer);
  }
  constexpr size_t RingSlotBytes() const { return static_cast<size_t>(num_ranks) * slot_bytes; }
  constexpr size_t RingSlotAt(uint32_t block, uint64_t step) const {
    return SimpleAt() + SlotIndex(block, step, 0) * slot_bytes;
  }
};
static_assert(kMaxBlocks * sizeof(uint64_t) <= WindowLayout::kViewsAt);
static_assert(WindowLayout::kFlagsAt + sizeof(uint64_t) * kMaxBlocks * kMaxMeshRanks <=
              WindowLayout::kTailsAt);
static_assert(WindowLayout::kHeadsAt + kMaxBlocks * sizeof(uint64_t) <= WindowLayout::kLLAt);

struct MeshArgs {
  std::byte* windows[kMaxMeshRanks] = {};  // addresses in this GPU's mappings
  const uint32_t* abort_word = nullptr;    // in pinned host memory
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  size_t count = 0;        // elements for all blocks (of a part, or of the whole)
  size_t block_elems = 0;  // elements of each block but the last
  size_t stride = 0;       // elements between parts
  size_t chunk_elems = 0;  // elements of a part in one round, or of a ring in one step
  WindowLayout layout;
  ReduceArgs reduce;
  int rank = 0;
  int num_ranks = 1;
  int root = 0;
  int ring[kMaxMeshRanks] = {};  // the ranks in the order of the ring
  int ring_index = 0;            // this rank's place in the ring
  MeshAlgorithm algorithm = MeshAlgorithm::kAllReduceOneShot;
  Protocol protocol = Protocol::kSimple;
};

// For operations between registered buffers: the buffers of all ranks, in this GPU's mappings.
struct SymmetricArgs : MeshArgs {
  const std::byte* inputs[kMaxMeshRanks] = {};  // only for reductions
  std::byte* outputs[kMaxMeshRanks] = {};       // not for ReduceScatter
};

}  // namespace tutti::cuda
