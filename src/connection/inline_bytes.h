#pragma once

#include <cstddef>

namespace tutti {

// This many bytes of a chunk fit into the cache line of its slot's flag, beside the flag. The
// planner decides by this number, and FIFOs and stages lay out their slots by it.
inline constexpr size_t kInlineBytes = 48;

}  // namespace tutti
