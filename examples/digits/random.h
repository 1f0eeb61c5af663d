// Random numbers that are equal on every machine. The standard fixes the output of std::mt19937_64,
// but leaves its distributions and std::shuffle to the library. This program therefore has its own.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>

namespace digits {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// Uniform in 0..bound-1. The modulo's bias is below bound / 2^64. REQUIRES: bound > 0.
  size_t Below(size_t bound) { return static_cast<size_t>(engine_() % bound); }

  /// Uniform in (0, 1]: never 0, hence its logarithm is finite.
  double Unit() { return (static_cast<double>(engine_() >> 11) + 1.0) * 0x1p-53; }

  /// Standard normal, by Box and Muller's method (one of the pair is thrown away).
  double Normal() {
    return std::sqrt(-2.0 * std::log(Unit())) * std::cos(2.0 * std::numbers::pi * Unit());
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace digits
