#pragma once

// The list in which kernels of a rank look for the window that holds an address (ncclFindWindow):
// chained blocks in the rank's memory, and the host's copy of them. No kernel may read the list
// while it changes.
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
  // Removes the entry of a window, if there is one.
  Status Remove(ncclWindow_t window);
  // Returns the first block, for kernels; null before the first Add. It never moves.
  ncclDevCommWindowTable* first() const { return blocks_.empty() ? nullptr : blocks_[0].there; }

 private:
  struct Block {
    ncclDevCommWindowTable* there = nullptr;                 // Kernels read it there.
    std::unique_ptr<ncclDevCommWindowTable> here = nullptr;  // the host's copy
  };
  Status AddBlock();
  Status WriteEntry(const Block& block, size_t index);

  RecordMemory& memory_;
  std::vector<Block> blocks_;
};

}  // namespace tutti
