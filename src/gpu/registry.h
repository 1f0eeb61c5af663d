#pragma once

// GpuRegistry has the windows that operations of a communicator of GPUs read and write directly, in
// all ranks' parts. The caller promises the same offset in the window for the buffers of all ranks
// (NCCL_WIN_COLL_SYMMETRIC).
//
// One thread at a time.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tutti {

class GpuRegistry {
 public:
  // Has the parts of a window, at the addresses seen by this rank's GPU.
  struct Buffer {
    uint64_t number = 0;  // Counts the windows of the communicator, alike on all ranks.
    std::span<std::byte> own;
    std::vector<std::byte*> of;  // Each rank's part.

    // Returns the place in the buffer of `rank` that corresponds to `pointer` in this rank's part.
    std::byte* At(int rank, const void* pointer) const {
      return of[static_cast<size_t>(rank)] + (static_cast<const std::byte*>(pointer) - own.data());
    }
    // Returns `mark` mixed with a hash of the buffer's number and the offset of `pointer`. Both
    // must be the same on all ranks.
    uint32_t Mark(uint32_t mark, const void* pointer) const;
  };

  // Adds a window of which `own` is this rank's part and `parts` are the parts of all ranks. All
  // ranks add the same windows in the same order. Returns the argument for Remove.
  const void* Add(std::span<std::byte> own, std::vector<std::byte*> parts);
  void Remove(const void* buffer);

  // Returns the buffer that holds these bytes, or null without such a buffer.
  const Buffer* Find(const void* begin, size_t bytes) const;
  bool empty() const { return buffers_.empty(); }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t num_added_ = 0;
};

}  // namespace tutti
