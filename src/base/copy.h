#pragma once

// The only place that copies the bytes of users' buffers. Pure functions; any thread.
//
// Measured on a Sapphire Rapids virtual machine with 2 MB of L2 (bench/results/reduce.md): up to 32
// bytes glibc's memcpy spends more on choosing than on copying; above 32 bytes memcpy is within a
// few percent of a hand-written AVX-512 loop and of `rep movsb`. From 16 MB on, stores that do not
// first read the overwritten line move 1.2 to 1.6 times as much, and glibc uses such stores only
// beyond most of its supposed share of the L3.

#include <cstddef>

namespace tutti {

// From this size of destination on, CopyBytes and the reductions write past the caches: the size is
// several times any L2, so a reader would not find the data there anyway. Too small a value would
// cost the reader of a chunk its cache hits; too large a value wastes memory bandwidth.
inline constexpr size_t kPastCacheBytes = size_t{16} << 20;

// Copies `bytes` bytes. The ranges must not overlap, except that dst may equal src.
void CopyBytes(void* dst, const void* src, size_t bytes);

// Copies as CopyBytes does, and writes past the caches whatever the size: for a destination that is
// not read soon, such as a chunk of a large user buffer.
void CopyBytesPastCache(void* dst, const void* src, size_t bytes);

}  // namespace tutti
