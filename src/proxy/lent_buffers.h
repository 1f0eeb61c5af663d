#pragma once

// Buffers that the user has registered (ncclCommRegister, windows). Connections send straight from
// these buffers: a kernel announces the place of a chunk in place of a copy.
//
// Threads: any.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "transport/net/memory.h"

namespace tutti {

class LentBuffers {
 public:
  // Adds a buffer. Returns the argument for Remove. The resources of the region (a descriptor, a
  // registration with the NIC) live as long as `region`, which users may keep beyond Remove.
  const void* Add(std::shared_ptr<const NetRegion> region) {
    const MutexLock lock(mutex_);
    return regions_.emplace_back(std::move(region)).get();
  }
  void Remove(const void* token) {
    const MutexLock lock(mutex_);
    std::erase_if(regions_, [&](const auto& region) { return region.get() == token; });
  }
  // Returns the buffer that holds these bytes; null without such a buffer.
  std::shared_ptr<const NetRegion> Find(const std::byte* begin, size_t bytes) const {
    const MutexLock lock(mutex_);
    const auto found = std::find_if(regions_.begin(), regions_.end(), [&](const auto& region) {
      return Holds(*region, begin, bytes);
    });
    return found == regions_.end() ? nullptr : *found;
  }
  static bool Holds(const NetRegion& region, const std::byte* begin, size_t bytes) {
    return begin >= region.address && bytes <= region.bytes &&
           static_cast<size_t>(begin - region.address) <= region.bytes - bytes;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<const NetRegion>> regions_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti
