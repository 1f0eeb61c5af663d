#pragma once

// The memory of a FIFO that only one process uses. It is zeroed, aligned to pages (to huge pages
// where it is large enough to have any) and touched only as slots are used, so that idle
// connections cost little.

#include <cstddef>
#include <span>

#include "base/status.h"
#include "connection/fifo.h"

namespace tutti {

class FifoMemory {
 public:
  static Result<FifoMemory> Create(size_t slot_bytes, size_t gap_bytes, bool huge_pages);
  FifoMemory(FifoMemory&& other) noexcept;
  FifoMemory& operator=(FifoMemory&&) = delete;
  ~FifoMemory();

  FifoView view() const { return {base_, slot_bytes_, gap_bytes_}; }
  // All of it, for a network that must know the memory beforehand.
  std::span<std::byte> bytes() const { return {base_, mapped_bytes_}; }

 private:
  FifoMemory(std::byte* base, size_t mapped_bytes, size_t slot_bytes, size_t gap_bytes)
      : base_(base), mapped_bytes_(mapped_bytes), slot_bytes_(slot_bytes), gap_bytes_(gap_bytes) {}

  std::byte* base_;
  size_t mapped_bytes_;
  size_t slot_bytes_;
  size_t gap_bytes_;
};

}  // namespace tutti
