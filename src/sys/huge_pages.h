#pragma once

// Memory that begins where a huge page can begin. mmap(2) aligns to small pages, and the kernel
// uses huge pages only where a whole huge page lies within a mapping.

#include <cstddef>

namespace tutti {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Sets aside addresses of `bytes` (whole small pages) at a multiple of kHugePageBytes, which cannot
// be read or written. Otherwise as MapAtHugePage.
void* ReserveAtHugePage(size_t bytes);

// Maps `bytes` (whole small pages) for reading and writing at a multiple of kHugePageBytes: shared
// pages of `fd`, or with -1 private pages of no file, which take memory only when they are written.
// Returns MAP_FAILED, with errno set, on failure. Ends with munmap(result, bytes).
void* MapAtHugePage(int fd, size_t bytes);

// Asks for huge pages. A wish: a kernel without huge pages for such memory refuses, and nothing is
// lost.
void AdviseHugePages(void* memory, size_t bytes);

}  // namespace tutti
