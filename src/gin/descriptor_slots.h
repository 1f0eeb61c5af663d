#pragma once

// Takes descriptors (nccl_device/impl/gin_descriptor.h) from their slots, for proxies.

#include <array>
#include <atomic>
#include <cstdint>

#include "base/status.h"
#include "nccl_device/impl/gin_descriptor.h"

namespace tutti {

using GinWords = std::array<uint64_t, device::GinDescriptor::kUsedWords>;

// Reads the words of a slot. Returns whether all of them have arrived.
inline bool ReadDescriptor(uint64_t* slot, GinWords& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = std::atomic_ref<uint64_t>(slot[i]).load(std::memory_order_acquire);
    if ((words[i] & 1) == 0) return false;
  }
  return true;
}

// Frees a slot. The next kernel that gets the slot sees it cleared, because the consumer index is
// released later.
inline void ClearDescriptor(uint64_t* slot) {
  for (int i = 0; i < device::GinDescriptor::kUsedWords; ++i)
    std::atomic_ref<uint64_t>(slot[i]).store(0, std::memory_order_relaxed);
}

inline Status CheckVersion(const GinWords& words) {
  if (device::GinVersionOf(words.data()) == device::kGinVersion) return Status::Ok();
  return InvalidUsage("a kernel posted an operation of version {} instead of {}",
                      device::GinVersionOf(words.data()), device::kGinVersion);
}

}  // namespace tutti
