#include "sys/reserved_range.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/rounding.h"
#include "sys/huge_pages.h"
#include "sys/shared_memory.h"

namespace tutti {
namespace {

constexpr int kReserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

size_t WholePages(size_t bytes) {
  return RoundUp(bytes, static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

}  // namespace

Result<ReservedRange> ReservedRange::Create(size_t bytes) {
  if (bytes == 0 || bytes > SIZE_MAX / 2)
    return InvalidArgument("{} bytes of addresses were to be set aside", bytes);
  const size_t rounded = WholePages(bytes);
  void* const start = ReserveAtHugePage(rounded);
  if (start == MAP_FAILED) {
    const int error = errno;
    return ErrnoError(error, fmt::format("cannot set aside {} bytes of addresses (RLIMIT_AS, "
                                         "ulimit -v, bounds them)",
                                         rounded));
  }
  return ReservedRange(static_cast<std::byte*>(start), rounded);
}

ReservedRange& ReservedRange::operator=(ReservedRange&& other) noexcept {
  if (this == &other) return *this;
  Release();
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void ReservedRange::Release() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

// MAP_FIXED replaces the old pages in a single step, so no other mapping can slip into the range.
Status ReservedRange::MapShared(size_t offset, const UniqueFd& fd, size_t expected_bytes) {
  TUTTI_TRY(SharedMemory::CheckRegion(fd, expected_bytes));
  const size_t bytes = WholePages(expected_bytes);
  if (offset > size_ || bytes > size_ - offset)
    return InvalidArgument("{} bytes do not fit at {} of a range of {} bytes", bytes, offset,
                           size_);
  void* const mapped =
      mmap(data_ + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd.get(), 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    return ErrnoError(error, fmt::format("cannot map {} bytes of shared memory (vm.max_map_count "
                                         "bounds the number of mappings)",
                                         bytes));
  }
  if (bytes >= kHugePageBytes) AdviseHugePages(mapped, bytes);
  return Status::Ok();
}

void ReservedRange::Clear(size_t offset, size_t bytes) {
  // Where the system refuses, the pages stay mapped until the range ends or something else is
  // mapped at their place.
  mmap(data_ + offset, WholePages(bytes), PROT_NONE, kReserved | MAP_FIXED, -1, 0);
}

}  // namespace tutti
