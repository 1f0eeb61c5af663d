#include "base/copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace tutti {
namespace {

// Two moves of kSize bytes that may overlap cover any length from kSize to twice that.
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
  constexpr size_t kLine = 64;
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  if (bytes >= 2 * kLine) {
    const size_t head = -reinterpret_cast<uintptr_t>(to) % kLine;
    std::memcpy(to, from, head);
    const size_t body = (bytes - head) / kLine * kLine;
    to += head;
    from += head;
    for (size_t offset = 0; offset < body; offset += kLine) {
      const auto* line = reinterpret_cast<const __m128i*>(from + offset);
      auto* out = reinterpret_cast<__m128i*>(to + offset);
      const __m128i a = _mm_loadu_si128(line);
      const __m128i b = _mm_loadu_si128(line + 1);
      const __m128i c = _mm_loadu_si128(line + 2);
      const __m128i d = _mm_loadu_si128(line + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    // Streaming stores are not ordered with others; whoever is told "done" next must see them.
    _mm_sfence();
    to += body;
    from += body;
    bytes -= head + body;
  }
  std::memcpy(to, from, bytes);
#else
  std::memcpy(dst, src, bytes);
#endif
}

}  // namespace tutti
