#pragma once

// The buffers that all ranks of a communicator of GPUs have registered together
// (ncclCommWindowRegister): each rank maps those of all others, so that operations read and write
// them where they are. The caller promises that a rank's buffers lie at the same offsets as those
// of the others (NCCL_WIN_COLL_SYMMETRIC).
//
// All ranks call Share alike. The other functions are called by one thread at a time.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/memory.h"
#include "base/status.h"
#include "gpu/windows.h"

namespace tutti {

class GpuRegistry {
 public:
  // Registered memory of all ranks, as this rank's GPU sees it.
  struct Buffer {
    uint64_t number = 0;  // The same on all ranks; counts the buffers of the communicator.
    std::span<std::byte> own;
    std::vector<std::byte*> of;
    std::vector<cuda::MappedMemory> mapped;

    // Returns the place in the buffer of `rank` that corresponds to `pointer` in this rank's own.
    std::byte* At(int rank, const void* pointer) const {
      return of[static_cast<size_t>(rank)] + (static_cast<const std::byte*>(pointer) - own.data());
    }
    // Returns `mark` mixed with a hash of the buffer's number and the place of `pointer` in it,
    // which must be the same on all ranks.
    uint32_t Mark(uint32_t mark, const void* pointer) const;
  };

  // A buffer that all ranks have mapped; or null, and the reason, which is the same on every rank.
  struct Shared {
    std::unique_ptr<Buffer> buffer;
    Status refusal;
  };
  // Lets all ranks map one another's `buffer`. Fails when the ranks cannot talk.
  static Result<Shared> Share(const GpuPeers& peers, std::span<std::byte> buffer);
  void Add(std::unique_ptr<Buffer> buffer);
  // Removes a buffer and returns it. REQUIRES: it was added.
  std::unique_ptr<Buffer> Take(const void* buffer);

  // Returns the buffer that holds these bytes; null when none does.
  const Buffer* Find(const void* begin, size_t bytes) const;
  bool empty() const { return buffers_.empty(); }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t num_added_ = 0;
};

}  // namespace tutti
