#include "transport/net/verbs/memory_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/rounding.h"
#include "transport/net/verbs/fault.h"

namespace tutti {
namespace {

uintptr_t PageBytes() {
  static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

// Registers whole pages, so that buffers in registered pages need no call of the driver. Memory for
// one-sided operations is registered exactly as requested, and never shared: its key gives the peer
// access to the range and to no byte beside the range.
Result<HeldRegistration> MemoryCache::Get(const NetRegion& region, MemoryUse use) {
  const uintptr_t page = PageBytes();
  const auto address = reinterpret_cast<uintptr_t>(region.address);
  // The pages of a DMA-BUF are the exporter's, so the range is not widened to whole pages.
  const bool exact = region.dmabuf_fd >= 0 || use == MemoryUse::kOneSided;
  const uintptr_t begin = exact ? address : address / page * page;
  const uintptr_t end =
      exact ? address + region.bytes : (address + region.bytes + page - 1) / page * page;
  const MutexLock lock(mutex_);
  for (const auto& entry : entries_) {
    std::shared_ptr<Registration> held = entry.lock();
    if (use == MemoryUse::kMessages && held && held->Serves(address, address + region.bytes, use)) {
      return HeldRegistration{std::move(held), false};
    }
  }
  errno = 0;
  ibv_mr* const mr = Register(region, begin, end - begin, use);
  if (!mr) {
    return DescribeRefusal(
        errno, fmt::format("registering {} bytes of memory failed", region.bytes), device_->name());
  }
  auto made = std::make_shared<Registration>(device_, *mr, begin, end, use);
  std::erase_if(entries_, [](const auto& entry) { return entry.expired(); });
  entries_.push_back(made);
  return HeldRegistration{std::move(made), true};
}

// Returns null, with errno, where the device refuses. Only messages allow relaxed ordering, because
// a completion reports their end; tables and signals are read while the device writes.
ibv_mr* MemoryCache::Register(const NetRegion& region, uintptr_t begin, size_t bytes,
                              MemoryUse use) const {
  const VerbsLibrary& library = device_->library();
  unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (use == MemoryUse::kOneSided) access |= IBV_ACCESS_REMOTE_ATOMIC;
  const bool relaxed =
      relaxed_ordering_ && use == MemoryUse::kMessages && library.reg_mr_iova2 != nullptr;
  if (relaxed) access |= IBV_ACCESS_RELAXED_ORDERING;
  if (region.dmabuf_fd >= 0) {
    if (!library.reg_dmabuf_mr) {
      errno = EOPNOTSUPP;
      return nullptr;
    }
    return library.reg_dmabuf_mr(&domain_, region.dmabuf_offset, bytes, begin, region.dmabuf_fd,
                                 static_cast<int>(access));
  }
  void* const memory = reinterpret_cast<void*>(begin);
  if (relaxed) return library.reg_mr_iova2(&domain_, memory, bytes, begin, access);
  return library.reg_mr(&domain_, memory, bytes, static_cast<int>(access));
}

// Tables are registered for one-sided use, although messages need them: the processor polls entries
// while the NIC writes, and must see the bytes in order.
Result<std::unique_ptr<RegisteredPages>> RegisteredPages::Create(
    std::span<MemoryCache* const> caches, size_t bytes) {
  auto pages = std::make_unique<RegisteredPages>();
  bytes = RoundUp(bytes, PageBytes());
  pages->memory_.reset(static_cast<std::byte*>(std::aligned_alloc(PageBytes(), bytes)));
  if (!pages->memory_) return SystemError("no memory for the tables of a connection");
  std::memset(pages->memory_.get(), 0, bytes);
  for (size_t i = 0; i < caches.size(); ++i) {
    const auto same = std::find(caches.begin(), caches.end(), caches[i]) - caches.begin();
    if (static_cast<size_t>(same) < i) {
      pages->registrations_.push_back(pages->registrations_[static_cast<size_t>(same)]);
      continue;
    }
    TUTTI_ASSIGN(HeldRegistration held,
                 caches[i]->Get({pages->memory_.get(), bytes}, MemoryUse::kOneSided));
    pages->registrations_.push_back(std::move(held.registration));
  }
  return pages;
}

size_t MemoryCache::size() {
  const MutexLock lock(mutex_);
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(),
                                           [](const auto& entry) { return !entry.expired(); }));
}

}  // namespace tutti
