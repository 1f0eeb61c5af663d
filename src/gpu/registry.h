#pragma once

// The buffers that all ranks of a communicator of GPUs have registered together
// (ncclCommWindowRegister): each rank maps those of all others, so that operations read and write
// them where they are. That a rank's buffers lie at the same offsets as the others' is the caller's
// promise (NCCL_WIN_COLL_SYMMETRIC).
//
// Share is called by all ranks alike; the rest by one thread at a time.

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
  // Registered memory, by rank: as this rank's GPU sees it.
  struct Buffer {
    uint64_t number = 0;  // among those of the communicator, alike on all ranks
    std::span<std::byte> own;
    std::vector<std::byte*> of;
    std::vector<cuda::MappedMemory> mapped;

    // Where `rank` has what lies at `pointer` here.
    std::byte* At(int rank, const void* pointer) const {
      return of[static_cast<size_t>(rank)] + (static_cast<const std::byte*>(pointer) - own.data());
    }
    // A hash of which buffer it is and where in it something is: what ranks must have alike.
    uint32_t Mark(uint32_t mark, const void* pointer) const;
  };

  // A buffer that all ranks have mapped, or null, and why not; the same on every rank.
  struct Shared {
    std::unique_ptr<Buffer> buffer;
    Status refusal;
  };
  // Fails when the ranks cannot talk.
  static Result<Shared> Share(const GpuPeers& peers, std::span<std::byte> buffer);
  void Add(std::unique_ptr<Buffer> buffer);
  // REQUIRES: it was added.
  std::unique_ptr<Buffer> Take(const void* buffer);

  // The buffer that holds these bytes; null when none does.
  const Buffer* Find(const void* begin, size_t bytes) const;
  bool empty() const { return buffers_.empty(); }

 private:
  std::vector<std::unique_ptr<Buffer>> buffers_;
  uint64_t num_added_ = 0;
};

}  // namespace tutti
