#include "sys/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

#include "base/rounding.h"

namespace tutti {
namespace {

constexpr int kNoFile = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

void* ReserveAtHugePage(size_t bytes) {
  // The mapping has room to spare, so an aligned stretch lies within; the ends that stick out are
  // given back.
  void* const mapped = mmap(nullptr, bytes + kHugePageBytes, PROT_NONE, kNoFile, -1, 0);
  if (mapped == MAP_FAILED) return MAP_FAILED;
  auto* const start = static_cast<std::byte*>(mapped);
  const auto at = reinterpret_cast<uintptr_t>(mapped);
  const size_t before = RoundUp(at, kHugePageBytes) - at;
  if (before > 0) munmap(start, before);
  munmap(start + before + bytes, kHugePageBytes - before);
  return start + before;
}

void* MapAtHugePage(int fd, size_t bytes) {
  void* const reserved = ReserveAtHugePage(bytes);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  const int kind = fd >= 0 ? MAP_SHARED : kNoFile;
  void* const mapped = mmap(reserved, bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(reserved, bytes);
    errno = error;
  }
  return mapped;
}

void AdviseHugePages(void* memory, size_t bytes) {
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
}

}  // namespace tutti
