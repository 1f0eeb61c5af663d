#pragma once

// Sizes in whole units. Device code includes this.

#include <cstddef>

namespace tutti {

// Returns how many units hold `value`.
constexpr size_t DivUp(size_t value, size_t unit) { return (value + unit - 1) / unit; }
// Returns the smallest multiple of `unit` that is at least `value`.
constexpr size_t RoundUp(size_t value, size_t unit) { return DivUp(value, unit) * unit; }

}  // namespace tutti
