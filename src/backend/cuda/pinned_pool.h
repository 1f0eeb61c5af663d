#pragma once

// Pinned memory of the host that communicators leave to one another.
//
// Giving pinned memory back to CUDA (cuMemFreeHost) waits for all that runs on the GPU: a kernel of
// another communicator, for example, which waits for a rank that is about to end this one too. So
// what a communicator has had stays pinned for the next one, up to kMostKept bytes.

#include <cstddef>
#include <map>

#include "backend/cuda/driver.h"
#include "base/mutex.h"
#include "base/status.h"

namespace tutti::cuda {

class PinnedPool;

// Memory of a pool, to which it goes back when this is destroyed. Move-only; the pool must outlive
// it.
class PinnedBlock {
 public:
  PinnedBlock() = default;
  PinnedBlock(PinnedBlock&& other) noexcept { *this = static_cast<PinnedBlock&&>(other); }
  PinnedBlock& operator=(PinnedBlock&& other) noexcept;
  ~PinnedBlock() { Release(); }

  // Returns its address; null when there is none. All GPUs of the process see it at this address
  // too.
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }  // Returns what was asked for.

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
  // A communicator of eight channels pins up to 360 MiB, and one that does not fit waits as above
  // when it ends. What is kept is memory that the rest of the host cannot have.
  static constexpr size_t kMostKept = 512 << 20;

  PinnedPool(const Driver& driver, Context context) : driver_(driver), context_(context) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Memory that begins at a page. What stands in it is left over from before.
  Result<PinnedBlock> Take(size_t bytes);
  size_t kept_bytes() const;

 private:
  friend class PinnedBlock;
  void Put(std::byte* data, size_t bytes);

  const Driver& driver_;
  const Context context_;
  mutable Mutex mutex_;
  std::multimap<size_t, std::byte*> kept_ TUTTI_GUARDED_BY(mutex_);  // The keys are their sizes.
  size_t kept_bytes_ TUTTI_GUARDED_BY(mutex_) = 0;
};

}  // namespace tutti::cuda
