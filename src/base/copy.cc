#include "base/copy.h"

#include <cstring>

namespace tutti {

void CopyBytes(void* dst, const void* src, size_t bytes) {
  if (dst == src || bytes == 0) return;
  std::memcpy(dst, src, bytes);
}

}  // namespace tutti
