#pragma once

// Tells the types that overflow before an average of ordinary numbers is summed up.

#include "base/datatype.h"

namespace tutti {

// Returns whether a sum of ordinary numbers soon exceeds the type's largest number: float16 ends at
// 65504, both float8 earlier. bfloat16 reaches as far as float32.
constexpr bool HasNarrowRange(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kFloat8e4m3 ||
         type == DataType::kFloat8e5m2;
}

}  // namespace tutti
