#pragma once

// The one place that copies the bytes of users' buffers.

#include <cstddef>

namespace tutti {

// Copies `bytes` bytes. The ranges must not overlap, except that dst may equal src. Any thread.
void CopyBytes(void* dst, const void* src, size_t bytes);

}  // namespace tutti
