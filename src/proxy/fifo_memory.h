#pragma once

// The memory of a FIFO of a single process. The memory is zeroed, aligned to pages (to huge pages
// where it is large enough to have any) and touched only as slots are used, so idle connections
// cost little. A FIFO for a GPU lies in memory that its owner has pinned.

#include <cstddef>
#include <span>

#include "base/status.h"
#include "connection/fifo.h"

namespace tutti {

// The bytes behind a slot of a FIFO whose network does not carry op_tags: the sender puts the
// op_tag of a chunk right behind its last byte, and sends it as a part of the message.
inline constexpr size_t kOpTagGapBytes = 64;

class FifoMemory {
 public:
  static Result<FifoMemory> Create(size_t slot_bytes, size_t gap_bytes, bool huge_pages);
  // Uses `view`, zeroed, which the caller keeps for as long as this object lives.
  static FifoMemory Borrow(const FifoView& view);
  FifoMemory(FifoMemory&& other) noexcept;
  FifoMemory& operator=(FifoMemory&&) = delete;
  ~FifoMemory();

  FifoView view() const { return {base_, slot_bytes_, gap_bytes_, slots_}; }
  // Returns all bytes, for a network that must know the memory beforehand.
  std::span<std::byte> bytes() const { return {base_, bytes_}; }

 private:
  FifoMemory(std::byte* base, size_t bytes, bool mapped, size_t slot_bytes, size_t gap_bytes)
      : base_(base),
        bytes_(bytes),
        mapped_(mapped),
        slot_bytes_(slot_bytes),
        gap_bytes_(gap_bytes) {}

  std::byte* base_;
  size_t bytes_;
  bool mapped_;  // Create has mapped the memory
  size_t slot_bytes_;
  size_t gap_bytes_;
  std::byte* slots_ = nullptr;  // FifoView::slots
};

}  // namespace tutti
