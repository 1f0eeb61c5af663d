#pragma once

// The arena: the memory that all ranks of one communicator on one machine share. Each communicator
// has one memfd per machine, and every local rank maps the whole memfd. The memfd is sparse, hence
// only used parts cost memory.
//
// Layout (L local ranks, numbered 0 … L-1; every part page-aligned):
//   header        magic, layout; checked by every rank that maps it
//   stage[L]      one stage (connection/stage.h) per rank
//   fifo[L][L]    a FIFO (connection/fifo.h) from each rank to each

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "connection/fifo.h"
#include "connection/stage.h"

namespace tutti {

struct ArenaLayout {
  uint32_t num_ranks = 1;
  uint64_t stage_bytes = 0;      // data per stage slot
  uint64_t fifo_slot_bytes = 0;  // data per slot of a FIFO

  size_t StageStride() const;
  size_t FifoStride() const;
  size_t StageOffset(int rank) const;
  size_t FifoOffset(int from, int to) const;
  size_t TotalBytes() const;
  // Return the size of the data area of a stage and of a FIFO, in whole pages. The data area
  // follows the first page, which has the counters.
  size_t StageDataBytes() const { return StageStride() - kStageDataOffset; }
  size_t FifoDataBytes() const { return FifoStride() - kFifoDataOffset; }
  size_t DataBytes() const;  // of all stages and FIFOs together
};

// The arena in a mapping at `base`. A value; the mapping has another owner.
class Arena {
 public:
  Arena() = default;
  // Writes the header of a fresh, zeroed arena.
  static Arena Format(std::byte* base, const ArenaLayout& layout);
  // Checks the header of an arena that another process formatted.
  static Result<Arena> Attach(std::byte* base, const ArenaLayout& expected);

  const ArenaLayout& layout() const { return layout_; }
  StageView stage(int rank) const {
    return {base_ + layout_.StageOffset(rank), layout_.stage_bytes};
  }
  FifoView fifo(int from, int to) const {
    return {base_ + layout_.FifoOffset(from, to), layout_.fifo_slot_bytes};
  }

 private:
  Arena(std::byte* base, const ArenaLayout& layout) : base_(base), layout_(layout) {}
  std::byte* base_ = nullptr;
  ArenaLayout layout_;
};

}  // namespace tutti
