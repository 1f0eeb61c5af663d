#pragma once

// Pinned memory of the host that communicators leave to their successors.
//
// Giving pinned memory back to CUDA (cuMemFreeHost) waits for all work of the GPU. This may include
// a kernel of another communicator that waits for a rank, and the rank may be about to end this
// communicator too. A communicator's pinned memory therefore stays pinned for the next
// communicator, up to kMostKept bytes.

#include <cstddef>
#include <map>

#include "backend/cuda/driver.h"
#include "base/mutex.h"
#include "base/status.h"

namespace tutti::cuda {

class PinnedPool;

// Memory of a pool, to which the destructor returns it. Move-only. The pool must outlive the block.
class PinnedBlock {
 public:
  PinnedBlock() = default;
  PinnedBlock(PinnedBlock&& other) noexcept { *this = static_cast<PinnedBlock&&>(other); }
  PinnedBlock& operator=(PinnedBlock&& other) noexcept;
  ~PinnedBlock() { Release(); }

  // Returns the address, which all GPUs of the process use too, or null for an empty block.
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // Returns the requested size.

 private:
  friend class PinnedPool;
  void Release();

  PinnedPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Thread-safe.
class PinnedPool {
 public:
  // The most bytes that the pool keeps. A communicator of eight channels pins up to 360 MiB, and
  // the end of a communicator beyond the limit waits for the GPU. Kept memory is lost to the rest
  // of the host.
  static constexpr size_t kMostKept = 512 << 20;

  PinnedPool(const Driver& driver, Context context) : driver_(driver), context_(context) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Returns memory that begins at a page. Its content is arbitrary.
  Result<PinnedBlock> Take(size_t bytes);
  size_t kept_bytes() const;

 private:
  friend class PinnedBlock;
  void Put(std::byte* data, size_t bytes);

  const Driver& driver_;
  const Context context_;
  mutable Mutex mutex_;
  std::multimap<size_t, std::byte*> kept_ TUTTI_GUARDED_BY(mutex_);  // keyed by size
  size_t kept_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
};

}  // namespace tutti::cuda
