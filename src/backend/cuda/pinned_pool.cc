#include "backend/cuda/pinned_pool.h"

#include <fmt/format.h>

#include <utility>

#include "base/rounding.h"

namespace tutti::cuda {
namespace {

// Lengths are whole pages. Communicators ask for blocks of one page and for blocks of megabytes,
// again and again of the same lengths. A block is therefore reused for an equal length only.
constexpr size_t kPageBytes = 4096;

size_t Pages(size_t bytes) { return RoundUp(bytes, kPageBytes); }

}  // namespace

PinnedBlock& PinnedBlock::operator=(PinnedBlock&& other) noexcept {
  Release();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void PinnedBlock::Release() {
  if (pool_ != nullptr) pool_->Put(data_, Pages(size_));
  pool_ = nullptr;
}

// No block exists any more, hence all memory of the pool is in kept_.
PinnedPool::~PinnedPool() {
  const ManagingScope scope(driver_, context_);
  for (const auto& [bytes, data] : kept_) driver_.MemFreeHost(data);
}

// Pinning may take milliseconds, and happens without the mutex.
Result<PinnedBlock> PinnedPool::Take(size_t bytes) {
  PinnedBlock block;
  {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(Pages(bytes));
    if (found != kept_.end()) {
      block.data_ = found->second;
      kept_bytes_ -= found->first;
      kept_.erase(found);
    }
  }
  if (block.data_ == nullptr) {
    const ManagingScope scope(driver_, context_);
    void* memory = nullptr;
    TUTTI_TRY(driver_.Check(driver_.MemHostAlloc(&memory, Pages(bytes), kPinnedForAll),
                            fmt::format("pinning {} bytes of host memory", Pages(bytes))));
    block.data_ = static_cast<std::byte*>(memory);
  }
  block.pool_ = this;
  block.size_ = bytes;
  return block;
}

// Freeing waits for the GPU (pinned_pool.h), and happens without the mutex, beyond kMostKept only.
void PinnedPool::Put(std::byte* data, size_t bytes) {
  {
    const MutexLock lock(mutex_);
    if (kept_bytes_ + bytes <= kMostKept) {
      kept_.emplace(bytes, data);
      kept_bytes_ += bytes;
      return;
    }
  }
  const ManagingScope scope(driver_, context_);
  driver_.MemFreeHost(data);
}

size_t PinnedPool::kept_bytes() const {
  const MutexLock lock(mutex_);
  return kept_bytes_;
}

}  // namespace tutti::cuda
