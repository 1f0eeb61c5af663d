#include "proxy/fifo_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace tutti {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;

// A larger slot would be a mistake: 8 of them per connection and channel.
constexpr size_t kMaxSlotBytes = size_t{64} << 20;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Result<FifoMemory> FifoMemory::Create(size_t slot_bytes, bool huge_pages) {
  if (slot_bytes == 0 || slot_bytes > kMaxSlotBytes || slot_bytes % 64 != 0) {
    return InternalError("a FIFO cannot have slots of {} bytes", slot_bytes);
  }
  const size_t wanted = FifoView::BytesFor(slot_bytes);
  const bool huge = huge_pages && wanted >= kHugePageBytes;
  const size_t bytes = RoundUp(wanted, huge ? kHugePageBytes : kPageBytes);
  // mmap aligns to small pages; with room to spare the ends that stick out are given back.
  const size_t mapped = bytes + (huge ? kHugePageBytes : 0);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoError(errno, fmt::format("mapping {} bytes for a connection failed", mapped));
  }
  auto* base = static_cast<std::byte*>(memory);
  if (huge) {
    const size_t before =
        RoundUp(reinterpret_cast<size_t>(base), kHugePageBytes) - reinterpret_cast<size_t>(base);
    if (before > 0) munmap(base, before);
    munmap(base + before + bytes, mapped - before - bytes);
    base += before;
    madvise(base, bytes, MADV_HUGEPAGE);  // a wish: without it the memory works as well
  }
  return FifoMemory(base, bytes, slot_bytes);
}

FifoMemory::FifoMemory(FifoMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      slot_bytes_(other.slot_bytes_) {}

FifoMemory::~FifoMemory() {
  if (base_) munmap(base_, mapped_bytes_);
}

}  // namespace tutti
