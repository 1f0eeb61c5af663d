#pragma once

// Narrow floats without the conversions under test: read by the definition of their format, and
// written by looking for the nearest of all their values.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "base/datatype.h"

namespace tutti {

struct NarrowFormat {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
  unsigned nan;
  // The result for numbers that are too large.
  unsigned overflow;
};

inline std::optional<NarrowFormat> Narrow(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return NarrowFormat{5, 10, true, 0x7e00, 0x7c00};
    case DataType::kBfloat16:
      return NarrowFormat{8, 7, true, 0x7fc0, 0x7f80};
    case DataType::kFloat8e4m3:
      return NarrowFormat{4, 3, false, 0x7f, 0x7e};
    case DataType::kFloat8e5m2:
      return NarrowFormat{5, 2, true, 0x7f, 0x7b};
    default:
      return std::nullopt;
  }
}

inline double DecodeNarrow(const NarrowFormat& format, uint64_t bits) {
  const int width = 1 + format.exponent_bits + format.mantissa_bits;
  const bool negative = (bits >> (width - 1)) & 1;
  const uint64_t exponent = (bits >> format.mantissa_bits) & ((1u << format.exponent_bits) - 1);
  const uint64_t mantissa = bits & ((1u << format.mantissa_bits) - 1);
  const uint64_t last_exponent = (1u << format.exponent_bits) - 1;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  double value;
  if (format.has_infinity && exponent == last_exponent) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  } else if (!format.has_infinity && (bits & ((1u << (width - 1)) - 1)) == format.nan) {
    value = std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - bias - format.mantissa_bits);
  } else {
    value = std::ldexp(1.0 + std::ldexp(static_cast<double>(mantissa), -format.mantissa_bits),
                       static_cast<int>(exponent) - bias);
  }
  return negative ? -value : value;
}

// Every finite magnitude of a format in rising order; the index is the pattern.
class NarrowEncoder {
 public:
  explicit NarrowEncoder(const NarrowFormat& format) : format_(format) {
    const unsigned patterns = 1u << (format.exponent_bits + format.mantissa_bits);
    for (unsigned bits = 0; bits < patterns; ++bits) {
      const double value = DecodeNarrow(format, bits);
      if (!std::isfinite(value)) break;
      magnitudes_.push_back(value);
    }
    // The value that would come next if the format went on: the rounding boundary of overflow.
    const size_t last = magnitudes_.size() - 1;
    next_ = magnitudes_[last] + (magnitudes_[last] - magnitudes_[last - 1]);
  }

  uint64_t Encode(double value) const {
    if (std::isnan(value)) return format_.nan;
    const uint64_t sign =
        std::signbit(value) ? uint64_t{1} << (format_.exponent_bits + format_.mantissa_bits) : 0;
    const double magnitude = std::fabs(value);
    const double last = magnitudes_.back();
    if (magnitude > last) {
      const bool goes_down = magnitude < last + (next_ - last) / 2;
      return sign | (goes_down ? magnitudes_.size() - 1 : format_.overflow);
    }
    const size_t above = static_cast<size_t>(
        std::lower_bound(magnitudes_.begin(), magnitudes_.end(), magnitude) - magnitudes_.begin());
    if (magnitudes_[above] == magnitude) return sign | above;
    const double up = magnitudes_[above] - magnitude;
    const double down = magnitude - magnitudes_[above - 1];
    if (up != down) return sign | (up < down ? above : above - 1);
    return sign | (above % 2 == 0 ? above : above - 1);
  }

 private:
  NarrowFormat format_;
  std::vector<double> magnitudes_;
  double next_;
};

inline const NarrowEncoder& EncoderOf(DataType type) {
  static const NarrowEncoder f16(*Narrow(DataType::kFloat16));
  static const NarrowEncoder bf16(*Narrow(DataType::kBfloat16));
  static const NarrowEncoder e4m3(*Narrow(DataType::kFloat8e4m3));
  static const NarrowEncoder e5m2(*Narrow(DataType::kFloat8e5m2));
  switch (type) {
    case DataType::kFloat16:
      return f16;
    case DataType::kBfloat16:
      return bf16;
    case DataType::kFloat8e4m3:
      return e4m3;
    default:
      return e5m2;
  }
}

}  // namespace tutti
