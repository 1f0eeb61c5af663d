#pragma once

// Memory that begins where a huge page can begin. mmap(2) aligns to small pages, and the kernel
// backs by huge pages only those that lie whole in a mapping.

#include <cstddef>

namespace tutti {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Maps `bytes` (whole small pages) for reading and writing at a multiple of kHugePageBytes: shared
// pages of `fd`, or with -1 private ones of no file, which take memory only when they are written.
// MAP_FAILED, with errno set, when that cannot be had. Ends with munmap(result, bytes).
void* MapAtHugePage(int fd, size_t bytes);

// Asks for huge pages. A wish: a kernel that has none for such memory refuses, and nothing is lost.
void AdviseHugePages(void* memory, size_t bytes);

}  // namespace tutti
