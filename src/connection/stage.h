#pragma once

// A stage: the slots through which a rank shows its data to all ranks that can read its memory (the
// DirectPrimitives of kernels/primitives.h). A stage is a circular buffer of slots with a single
// producer and many consumers: round t uses slot t mod kStageSlots, and a rank may refill a slot
// once the `done` of every rank says that the earlier round is finished.
//
// Memory of a stage (fresh memory is zeroes, an empty stage):
//     0  StageControl
//   128  SlotHeader[kStageSlots]
//  4096  data, kStageSlots × stage_bytes

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "connection/fifo.h"

namespace tutti {

// The rounds in flight: two-shot keeps three, and the rest lets a root run ahead.
inline constexpr int kStageSlots = 8;
inline constexpr size_t kStageDataOffset = 4096;

struct StageControl {
  // The stage's owner has read all earlier rounds to their end.
  alignas(64) std::atomic<uint64_t> done;
  alignas(64) SleepFlag done_sleepers;  // producers that wait for `done`
  SleepFlag seq_sleepers;               // consumers that wait for a slot of this stage
};
static_assert(sizeof(StageControl) == 128);
static_assert(sizeof(StageControl) + kStageSlots * sizeof(SlotHeader) <= kStageDataOffset);

struct StageView {
  std::byte* base = nullptr;
  size_t stage_bytes = 0;

  static constexpr size_t BytesFor(size_t stage_bytes) {
    return kStageDataOffset + kStageSlots * stage_bytes;
  }
  StageControl& control() const { return *reinterpret_cast<StageControl*>(base); }
  SlotHeader& header(uint64_t round) const {
    return reinterpret_cast<SlotHeader*>(base + sizeof(StageControl))[round % kStageSlots];
  }
  std::byte* data(uint64_t round) const {
    return base + kStageDataOffset + (round % kStageSlots) * stage_bytes;
  }
};

}  // namespace tutti
