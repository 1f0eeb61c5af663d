#include "sys/huge_pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>

namespace tutti {

void* MapAtHugePage(int fd, size_t bytes) {
  // The mapping has room to spare, so an aligned stretch lies within; the ends that stick out are
  // given back.
  const size_t reserved = bytes + kHugePageBytes;
  void* reservation =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reservation == MAP_FAILED) return MAP_FAILED;
  const auto start = reinterpret_cast<uintptr_t>(reservation);
  const uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const int kind = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* mapped = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                      kind | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(reservation, reserved);
    errno = error;
    return MAP_FAILED;
  }
  if (aligned > start) munmap(reservation, aligned - start);
  const uintptr_t end = aligned + bytes;
  if (start + reserved > end) munmap(reinterpret_cast<void*>(end), start + reserved - end);
  return mapped;
}

void AdviseHugePages(void* memory, size_t bytes) {
  static_cast<void>(madvise(memory, bytes, MADV_HUGEPAGE));
}

}  // namespace tutti
