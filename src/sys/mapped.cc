#include "sys/mapped.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

namespace tutti {

// Asks in pieces, so the answer's buffer stays on the stack however large the range is.
bool IsMapped(const void* address, size_t bytes) {
  if (bytes == 0) return true;
  const auto begin = reinterpret_cast<uintptr_t>(address);
  if (begin + (bytes - 1) < begin) return false;  // beyond the last address
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t last_page = (begin + (bytes - 1)) / page;

  // mincore reports each page in a byte of its own; only its refusal to look at unmapped pages
  // matters here.
  constexpr uintptr_t kPagesAtOnce = 4096;
  std::array<unsigned char, kPagesAtOnce> resident;
  for (uintptr_t first = begin / page; first <= last_page; first += kPagesAtOnce) {
    const uintptr_t count = std::min(kPagesAtOnce, last_page - first + 1);
    int result;
    do {
      result = mincore(reinterpret_cast<void*>(first * page), count * page, resident.data());
    } while (result != 0 && errno == EAGAIN);
    if (result != 0) return false;
  }
  return true;
}

}  // namespace tutti
