#pragma once

// The list in which kernels of a rank find the window of an address (ncclFindWindow): chained
// blocks in the rank's memory, and the host's copy of the blocks. No kernel may read the list while
// it changes.
//
// One thread at a time.

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "nccl_device/impl/comm__types.h"
#include "window/record_memory.h"

namespace tutti {

class WindowTable {
 public:
  // `memory` must outlive the table.
  explicit WindowTable(RecordMemory& memory) : memory_(memory) {}
  ~WindowTable();
  WindowTable(const WindowTable&) = delete;
  WindowTable& operator=(const WindowTable&) = delete;

  Status Add(const ncclDevCommWindowTableEntry& entry);
  // Removes the entry of a window, if present.
  Status Remove(ncclWindow_t window);
  // Returns the first block, for kernels; null before the first Add. The block never moves.
  ncclDevCommWindowTable* first() const { return blocks_.empty() ? nullptr : blocks_[0].there; }

 private:
  struct Block {
    ncclDevCommWindowTable* there = nullptr;                 // The block as kernels read it.
    std::unique_ptr<ncclDevCommWindowTable> here = nullptr;  // The host's copy.
  };
  Status AddBlock();
  Status WriteEntry(const Block& block, size_t index);

  RecordMemory& memory_;
  std::vector<Block> blocks_;
};

}  // namespace tutti
