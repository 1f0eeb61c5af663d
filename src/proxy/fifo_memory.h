#pragma once

// The memory of a FIFO that only one process uses. It is zeroed, aligned to pages (to huge pages
// where it is large enough to have any) and touched only as slots are used, so that idle
// connections cost little.

#include <cstddef>

#include "base/status.h"
#include "connection/fifo.h"

namespace tutti {

class FifoMemory {
 public:
  static Result<FifoMemory> Create(size_t slot_bytes, bool huge_pages);
  FifoMemory(FifoMemory&& other) noexcept;
  FifoMemory& operator=(FifoMemory&&) = delete;
  ~FifoMemory();

  FifoView view() const { return {base_, slot_bytes_}; }

 private:
  FifoMemory(std::byte* base, size_t mapped_bytes, size_t slot_bytes)
      : base_(base), mapped_bytes_(mapped_bytes), slot_bytes_(slot_bytes) {}

  std::byte* base_;
  size_t mapped_bytes_;
  size_t slot_bytes_;
};

}  // namespace tutti
