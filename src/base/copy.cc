#include "base/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tutti {
namespace {

constexpr size_t kLine = 64;

// Two moves of kSize bytes that may overlap cover any length from kSize to 2 * kSize.
template <size_t kSize>
void CopyEnds(char* dst, const char* src, size_t bytes) {
  char first[kSize];
  char last[kSize];
  std::memcpy(first, src, kSize);
  std::memcpy(last, src + bytes - kSize, kSize);
  std::memcpy(dst, first, kSize);
  std::memcpy(dst + bytes - kSize, last, kSize);
}

// REQUIRES: bytes <= 32.
void CopyFew(char* dst, const char* src, size_t bytes) {
  if (bytes >= 16) return CopyEnds<16>(dst, src, bytes);
  if (bytes >= 8) return CopyEnds<8>(dst, src, bytes);
  if (bytes >= 4) return CopyEnds<4>(dst, src, bytes);
  if (bytes >= 2) return CopyEnds<2>(dst, src, bytes);
  if (bytes == 1) *dst = *src;
}

#if defined(__x86_64__)
// REQUIRES: `dst` is aligned to a line.
inline void StreamLine(char* dst, const char* src) {
  const auto* from = reinterpret_cast<const __m128i*>(src);
  auto* to = reinterpret_cast<__m128i*>(dst);
  const __m128i a = _mm_loadu_si128(from);
  const __m128i b = _mm_loadu_si128(from + 1);
  const __m128i c = _mm_loadu_si128(from + 2);
  const __m128i d = _mm_loadu_si128(from + 3);
  _mm_stream_si128(to, a);
  _mm_stream_si128(to + 1, b);
  _mm_stream_si128(to + 2, c);
  _mm_stream_si128(to + 3, d);
}

// Copies whole lines, going through kPages pages side by side: the prefetchers stop at the end of a
// page, so several pages at once keep the memory busier than a single page. Returns how many bytes
// were copied.
size_t StreamLines(char* dst, const char* src, size_t bytes) {
  constexpr size_t kPages = 4;
  constexpr size_t kPage = 4096;
  size_t done = 0;
  for (; done + kPages * kPage <= bytes; done += kPages * kPage) {
    for (size_t line = 0; line < kPage; line += kLine) {
      for (size_t page = 0; page < kPages; ++page) {
        const size_t offset = done + page * kPage + line;
        StreamLine(dst + offset, src + offset);
      }
    }
  }
  for (; done + kLine <= bytes; done += kLine) StreamLine(dst + done, src + done);
  return done;
}
#endif

}  // namespace

void CopyBytes(void* dst, const void* src, size_t bytes) {
  if (dst == src) return;
  if (bytes <= 32) {
    CopyFew(static_cast<char*>(dst), static_cast<const char*>(src), bytes);
  } else if (bytes < kPastCacheBytes) {
    std::memcpy(dst, src, bytes);
  } else {
    CopyBytesPastCache(dst, src, bytes);
  }
}

void CopyBytesPastCache(void* dst, const void* src, size_t bytes) {
  if (dst == src) return;
#if defined(__x86_64__)
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  if (bytes >= 2 * kLine) {
    const size_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
    std::memcpy(to, from, head);
    const size_t copied = head + StreamLines(to + head, from + head, bytes - head);
    // Streaming stores are not ordered with other stores; a thread that is told "done" next must
    // see them.
    _mm_sfence();
    to += copied;
    from += copied;
    bytes -= copied;
  }
  std::memcpy(to, from, bytes);
#else
  std::memcpy(dst, src, bytes);
#endif
}

}  // namespace tutti
