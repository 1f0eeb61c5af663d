#pragma once

// Defines CopyPiece: a copy from one place in memory to another. Kernels get such pieces as
// arguments.

#include <cstddef>

namespace tutti {

struct CopyPiece {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

}  // namespace tutti
