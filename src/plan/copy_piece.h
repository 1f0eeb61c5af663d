#pragma once

// CopyPiece: a copy from one place in memory to another, as plain data. Kernels have such pieces
// among their arguments.

#include <cstddef>

namespace tutti {

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

}  // namespace tutti
