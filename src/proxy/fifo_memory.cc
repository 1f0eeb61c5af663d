#include "proxy/fifo_memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "base/rounding.h"
#include "sys/huge_pages.h"

namespace tutti {
namespace {

constexpr size_t kPageBytes = 4096;

// A larger slot would be a mistake: 8 of them per connection and channel.
constexpr size_t kMaxSlotBytes = size_t{64} << 20;

}  // namespace

// Fresh pages are zeroes, which is an empty FIFO.
Result<FifoMemory> FifoMemory::Create(size_t slot_bytes, size_t gap_bytes, bool huge_pages) {
  if (slot_bytes == 0 || slot_bytes > kMaxSlotBytes || slot_bytes % 64 != 0 ||
      gap_bytes % 64 != 0) {
    return InternalError("a FIFO cannot have slots of {} bytes", slot_bytes);
  }
  const size_t wanted = FifoView::BytesFor(slot_bytes, gap_bytes);
  const bool huge = huge_pages && wanted >= kHugePageBytes;
  const size_t bytes = RoundUp(wanted, huge ? kHugePageBytes : kPageBytes);
  void* memory = huge ? MapAtHugePage(-1, bytes)
                      : mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoError(errno, fmt::format("mapping {} bytes for a connection failed", bytes));
  }
  if (huge) AdviseHugePages(memory, bytes);
  return FifoMemory(static_cast<std::byte*>(memory), bytes, /*mapped=*/true, slot_bytes, gap_bytes);
}

FifoMemory FifoMemory::Borrow(const FifoView& view) {
  const size_t bytes =
      view.slots != nullptr ? kFifoDataOffset : FifoView::BytesFor(view.slot_bytes, view.gap_bytes);
  FifoMemory memory(view.base, bytes, /*mapped=*/false, view.slot_bytes, view.gap_bytes);
  memory.slots_ = view.slots;
  return memory;
}

FifoMemory::FifoMemory(FifoMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_),
      mapped_(other.mapped_),
      slot_bytes_(other.slot_bytes_),
      gap_bytes_(other.gap_bytes_),
      slots_(other.slots_) {}

FifoMemory::~FifoMemory() {
  if (base_ && mapped_) munmap(base_, bytes_);
}

}  // namespace tutti
